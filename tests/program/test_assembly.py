"""How a plain model is put together: what the entry holds, and what makes no sense is refused."""

from __future__ import annotations

import functools
import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import converter
import jax_frontend
from converter.program.file import ProgramFile, read_program
from converter.program.flatbuffer.operators import OperatorFile
from converter.program.manifest import INFERENCE
from converter.runtime.export import export_inference
from converter.support.errors import UsageError

WIDTH = 48


@functools.cache
def built() -> ProgramFile:
    """Three layers, of which the last two train; their biases are equal as they are built."""
    rng = np.random.default_rng(0)
    params = [
        {"w": rng.standard_normal((WIDTH, WIDTH)).astype("f") / WIDTH, "b": np.zeros(WIDTH, "f")} for _ in range(3)
    ]

    def apply(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for layer in params:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, WIDTH), np.float32)])
    update = {"1/*": "all", "2/*": "all"}
    program = converter.build(model, batch=2, update=update, signatures=("train", "infer"), check=False)
    return read_program(program.data)


def contents() -> tuple[dict, bytes]:
    """The list of parts and the bytes of its own."""
    text, own = zlib.decompress(bytes(built().metadata[INFERENCE])).split(b"\n", 1)
    return json.loads(text), own


def test_no_weight_is_stored_twice() -> None:
    said, own = contents()
    sizes = {source: [p["nbytes"] for p in said["parts"] if p["source"] == source] for source in ("buffer", "state")}
    assert sorted(sizes["state"]) == sorted(2 * [4 * WIDTH, 4 * WIDTH**2])
    assert 4 * WIDTH**2 in sizes["buffer"]  # the first layer is frozen
    assert len(own) < 4096
    assert len(built().metadata[INFERENCE]) < 2048


def test_tensors_that_begin_equal_are_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    state = {t.tensor: rng.random(t.shape).astype(t.dtype) for t in built().manifest.state_tensors}
    export_inference(built(), tmp_path / "plain.tflite", state)
    interpreter = Interpreter(str(tmp_path / "plain.tflite"))
    x = rng.random((2, WIDTH)).astype(np.float32)
    (found,) = interpreter.get_signature_runner("infer")(x=x).values()
    first = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype("f") / WIDTH
    expected = np.maximum(x @ first, 0)
    for layer in ("1", "2"):
        expected = np.maximum(expected @ state[f"{layer}/w"] + state[f"{layer}/b"], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_is_computed_takes_the_place_of_what_it_is_computed_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"once": (WIDTH, WIDTH), "twice": (WIDTH, WIDTH), "a": (WIDTH,), "b": (WIDTH,), "column": (WIDTH, 1)}
    params = {name: rng.standard_normal(shape).astype("f") / WIDTH for name, shape in sizes.items()}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        x = jax.nn.relu(x @ (params["once"] * params["a"] + params["b"]))
        # Two matrices of one, and a matrix of two vectors: computed at export, they would be two and one more.
        x = jax.nn.relu(x @ (params["twice"] * params["a"])) @ (params["twice"] * params["b"])
        return x @ (params["column"] * params["b"])

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, WIDTH), np.float32)])
    program = converter.build(model, loss="mse", batch=2, signatures=("train", "infer"), check=False)
    path = program.export_inference(tmp_path / "plain.tflite")
    ((_, operators),) = OperatorFile(path.read_bytes()).subgraphs()
    assert Counter(operator.kind for operator in operators) == {"BATCH_MATMUL": 4, "RELU": 2, "MUL": 3}
    assert path.stat().st_size < sum(array.nbytes for array in params.values()) + 4096
    x = rng.random((2, WIDTH)).astype(np.float32)
    (found,) = Interpreter(str(path)).get_signature_runner("infer")(x=x).values()
    np.testing.assert_allclose(found, apply(params, x), rtol=1e-4, atol=1e-9)


@functools.cache
def scaled() -> ProgramFile:
    """A matrix that is scaled and shifted before it is multiplied with."""
    params = {name: np.ones(shape, "f") for name, shape in {"w": (3, 2), "scale": (2,), "shift": (3, 2)}.items()}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return x @ (params["w"] * params["scale"] + params["shift"])

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 3), np.float32)])
    program = converter.build(model, loss="mse", batch=2, signatures=("train", "infer"), check=False)
    return read_program(program.data)


@pytest.mark.parametrize(
    ("source", "field", "value", "message"),
    [
        ("multiply", "source", "divide", "expected one of"),
        ("multiply", "operands", [0], "multiply of"),
        ("multiply", "operands", [0, -1], "multiply of"),
        ("multiply", "operands", [0, 99], "multiply of"),
        ("multiply", "operands", [1, 0], "multiply has 2 elements"),
        ("multiply", "shape", [2, 3], "could not be broadcast"),
        ("multiply", "shape", [-3, -2], "elements"),
        ("state", "operands", [0], "state of"),
        ("state", "shape", [1 << 40, 1 << 40], "elements"),
        ("state", "name", "nobody", "elements"),
    ],
)
def test_a_computed_tensor_that_makes_no_sense_is_refused(
    source: str, field: str, value: object, message: str, tmp_path: Path
) -> None:
    def change(said: dict) -> None:
        next(record for record in said["known"] if record["source"] == source)[field] = value

    refuse(changed(change), message, tmp_path, scaled())


def changed(change: Callable[[dict], None]) -> bytes:
    """The entry of `scaled` with another list."""
    text, own = zlib.decompress(bytes(scaled().metadata[INFERENCE])).split(b"\n", 1)
    said = json.loads(text)
    change(said)
    return zlib.compress(json.dumps(said).encode() + b"\n" + own)


def test_what_is_made_is_bounded_by_what_is_stored(tmp_path: Path) -> None:
    def products(said: dict) -> None:
        place, record = next((i, r) for i, r in enumerate(said["known"]) if r["source"] == "multiply")
        for more in range(len(scaled().data)):
            said["known"].append({**record, "operands": [len(said["known"]) - 1 if more else place, 1]})

    def parts(said: dict) -> None:
        said["parts"] += len(scaled().data) * [next(part for part in said["parts"] if part["source"] == "known")]

    most = 4 * (len(scaled().data) + sum(4 * math.prod(t.shape) for t in scaled().manifest.state_tensors))
    for change in (products, parts):
        refuse(changed(change), rf"bytes or more, of at most {most}\)", tmp_path, scaled())


def test_what_nobody_reads_is_not_known(tmp_path: Path) -> None:
    def more(said: dict) -> None:
        said["known"].append(said["known"][-1])

    refuse(changed(more), "nobody reads what is known at", tmp_path, scaled())


def test_tensors_of_many_axes_are_refused(tmp_path: Path) -> None:
    def deep(said: dict) -> None:
        said["known"][0]["shape"] = [*6 * [1], *said["known"][0]["shape"], 1]

    refuse(changed(deep), "of 9 axes", tmp_path, scaled())


@pytest.mark.parametrize("steps", [1, 6])
def test_what_takes_many_steps_is_left_to_the_model(steps: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    params = {
        "w": rng.random((WIDTH, WIDTH)).astype("f"),
        "steps": [tuple(rng.random((2, WIDTH)).astype("f")) for _ in range(steps)],
    }

    def apply(params: dict, x: jax.Array) -> jax.Array:
        w = params["w"]
        for scale, shift in params["steps"]:
            w = w * scale + shift
        return x @ w

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, WIDTH), np.float32)])
    program = converter.build(model, loss="mse", batch=2, signatures=("train", "infer"), check=False)
    path = program.export_inference(tmp_path / "plain.tflite")
    ((_, operators),) = OperatorFile(path.read_bytes()).subgraphs()
    assert Counter(operator.kind for operator in operators)["MUL"] == (0 if steps == 1 else steps)
    x = rng.random((2, WIDTH)).astype(np.float32)
    (found,) = Interpreter(str(path)).get_signature_runner("infer")(x=x).values()
    np.testing.assert_allclose(found, apply(params, x), rtol=1e-5)


def test_a_trained_image_leaves_the_filter_to_the_sessions_kernel(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    shapes = {"image": (1, 20, 20, 16), "filter": (5, 5, 16, 24), "w": (9600, 3), "v": (2, 3)}
    params = {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        seen = jax.lax.conv_general_dilated(
            params["image"], params["filter"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(seen).reshape(1, -1) @ params["w"] + x @ params["v"]

    model = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 2), np.float32)])
    program = converter.build(model, loss="mse", batch=2, signatures=("train", "infer"), check=False)
    x = rng.standard_normal((2, 2)).astype(np.float32)
    with converter.runtime.TrainingSession(program.data) as session:
        session.train(x, np.ones((2, 3), "f"), 0.01)
        session.save(tmp_path / "mine.state")
        expected = session.infer(x)
    path = program.export_inference(tmp_path / "plain.tflite", tmp_path / "mine.state")
    (found,) = Interpreter(str(path)).get_signature_runner("infer")(x=x).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("source", "nowhere", "expected one of"),
        ("nbytes", 4, "bytes are left over"),
        ("nbytes", -1, "it names -1 bytes"),
        ("number", 9999, "not 0"),
        ("number", -1, "not 0"),
        ("name", "nobody", "not 0"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(field: str, value: str | int, message: str, tmp_path: Path) -> None:
    said, own = contents()
    kind = {"name": "state", "number": "buffer"}.get(field, "own")
    next(part for part in said["parts"] if part["source"] == kind)[field] = value
    refuse(zlib.compress(json.dumps(said).encode() + b"\n" + own), message, tmp_path)


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    whole = bytes(built().metadata[INFERENCE])
    refuse(whole[:-9], "cut short", tmp_path)
    refuse(struct.pack("<I", 7) + whole[4:], "damaged", tmp_path)
    refuse(zlib.compress(zlib.decompress(whole) + b"more"), "4 bytes are left over", tmp_path)
    refuse(zlib.compress(b"[" * 100_000), "damaged", tmp_path)


def refuse(entry: bytes, message: str, tmp_path: Path, program: ProgramFile | None = None) -> None:
    program = program or built()
    damaged = replace(program, metadata={**program.metadata, INFERENCE: memoryview(entry)})
    with pytest.raises(UsageError, match=message):
        export_inference(damaged, tmp_path / "plain.tflite")
    assert not list(tmp_path.iterdir())
