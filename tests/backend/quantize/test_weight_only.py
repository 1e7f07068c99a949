"""Programs with frozen weights in int4, against JAX with the numbers that these stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ai_edge_litert import schema_py_generated as schema

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.lowering.rules.linear import LARGEST_PIECE
from converter.backend.prepare import loss_by_classes, loss_in_parts
from converter.backend.schedule import outline
from converter.backend.stages import to_builtins
from converter.backend.targets import target
from converter.driver.quantization import QuantizationWarning
from converter.ir import INT4, INT32, Builder, TensorType, Value, evaluate, ops
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.support.litert import Interpreter
from examples import llama
from tests.backend.schedule.process import grown_by_training
from tests.backend.stock import file, run

LENGTH, VOCABULARY, BATCH = 8, 131, 2
SHAPE: dict[str, Any] = {"width": 64, "heads": 4, "key_heads": 2, "length": LENGTH, "vocabulary": VOCABULARY}
DECODER = llama.build(layers=2, **SHAPE)
ids = llama.sample_batch
BLOCKS = {"int4": None, "int4-blockwise": 32, "int4-blockwise-64": 64}


def dequantized(weight: np.ndarray, axis: int, block: int | None = None) -> np.ndarray:
    """What int4 stands for, written down anew: steps of a seventh of the largest of each row (0) or column (1).

    Of each block of one where these divide it; such steps are the next number that float16 has.
    """
    if axis == 1:
        return dequantized(weight.T, 0, block).T
    if block is None or weight.shape[1] % block:
        steps = np.abs(weight).max(1, keepdims=True) / np.float32(7)
        return np.rint(weight / np.where(steps > 0, steps, 1)) * steps
    parts = weight.reshape(-1, block)
    steps = np.abs(parts).max(1, keepdims=True) / np.float32(7)
    near = steps.astype(np.float16)
    steps = np.where(near < steps, np.nextafter(near, np.float16(np.inf)), near).astype(np.float32)
    return (np.rint(parts / np.where(steps > 0, steps, 1)) * steps).reshape(weight.shape)


def named(path: Any) -> str:
    return "/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)


def changed(params: Any, change: Callable[[str, np.ndarray], Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: change(named(path), leaf), params)


def rounded(model: jax_frontend.Model, int4: dict[str, int], block: int | None = None) -> Any:
    """The parameters with those in `int4` rounded, by the axis that has a scale for each place."""
    return changed(model.params, lambda name, w: dequantized(w, int4[name], block) if name in int4 else np.asarray(w))


def merged(params: Any, trained: dict[str, Any], scale: float) -> Any:
    """The parameters with what trains in its place, low-rank factors added to theirs."""

    def one(name: str, leaf: Any) -> Any:
        if f"{name}/lora_b" in trained:
            return leaf + scale * trained[f"{name}/lora_a"] @ trained[f"{name}/lora_b"]
        return trained.get(name, leaf)

    return changed(params, one)


def check_steps(model: jax_frontend.Model, int4: dict[str, int], scale: float, steps: int, **options: Any) -> Any:
    """Trains a program and JAX side by side: each loss within 1e-4, each update within 1e-3 of its size."""
    rule = optax.adam(0.01)
    options = {"frozen": "int4", **options}
    program = converter.build(model, optimizer=rule, batch=BATCH, check=False, **options)
    assert sum(layer.form in ("int4", "int4-blockwise") for layer in program.quantization.layers) >= len(int4)
    params = jax.tree_util.tree_map(jnp.asarray, rounded(model, int4, BLOCKS[options["frozen"]]))
    with TrainingSession(program.data) as session:
        first = session.parameters()
        trained: Any = {name: jnp.asarray(array) for name, array in first.items()}
        assert not trained.keys() & int4.keys()

        def loss(trained: Any, x: Any, y: Any) -> Any:
            logits = model.apply(merged(params, trained, scale), x)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()

        @jax.jit
        def step(trained: Any, slots: Any, x: Any, y: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(trained, x, y)
            updates, slots = rule.update(gradients, slots)
            return value, optax.apply_updates(trained, updates), slots

        slots = rule.init(trained)
        for i in range(steps):
            x, y = ids(BATCH, i, LENGTH, VOCABULARY)
            expected, trained, slots = step(trained, slots, x, y)
            assert session.train(x, y) == pytest.approx(float(expected), abs=1e-4)
        for name, array in session.parameters().items():
            update, found = np.asarray(trained[name]) - first[name], array - first[name]
            assert np.linalg.norm(found - update) <= 1e-3 * np.linalg.norm(update), name
    return program


def matrices(model: jax_frontend.Model, *without: str) -> dict[str, int]:
    """The matrices that are rounded, by the axis of their scales, but for those whose name begins so."""
    named_ = [(named(path), w) for path, w in jax.tree_util.tree_flatten_with_path(model.params)[0]]
    chosen = [name for name, w in named_ if w.size >= 4096 and not name.startswith(without or ("/",))]
    assert chosen
    return {name: 0 if name == "tokens" else 1 for name in chosen}


def test_lora_equals_jax_with_the_rounded_weights() -> None:
    program = check_steps(DECODER, matrices(DECODER), 2.0, 20, update="lora-4")
    (table,) = (layer for layer in program.quantization.layers if layer.operator == "GATHER")
    assert table.form == "int4"
    assert {layer.why for layer in program.quantization.layers if layer.form == "float32"} == {"small"}


@pytest.mark.parametrize("frozen", ["int4", "int4-blockwise"])
def test_so_does_a_step_in_blocks_and_pieces(frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is met some words at a time, and the step is a row of subgraphs."""
    monkeypatch.setattr(loss_in_parts, "MOST", 0)
    monkeypatch.setattr(loss_by_classes, "FEWEST_CLASSES", 1)
    monkeypatch.setattr(loss_by_classes, "OF_MATRIX", 40 * SHAPE["width"])
    for name, nodes in {"LONGEST": 100, "SHORTEST_PIECE": 40, "LONGEST_PIECE": 150}.items():
        monkeypatch.setattr(outline, name, nodes)
    update = {"layers/*": converter.LoRA(4, alpha=8)}
    options: dict[str, Any] = {"blocks": "on", "loss": "next_token", "signatures": ("train",), "frozen": frozen}
    program = check_steps(DECODER, matrices(DECODER), 2.0, 20, update=update, **options)
    assert sum(node.op.code == "WHILE" for node in program.signatures["train"].nodes) > 2


@pytest.mark.parametrize(
    "trained",
    [
        pytest.param("layers/1/ffn", id="around frozen ones"),
        pytest.param("tokens", id="before frozen ones", marks=pytest.mark.slow),
        pytest.param("head", id="behind frozen ones", marks=pytest.mark.slow),
    ],
)
def test_frozen_layers_are_met_on_every_side(trained: str) -> None:
    check_steps(DECODER, matrices(DECODER, trained), 1.0, 3, update={f"{trained}*": 1})


def tied(width: int, transposed: bool) -> jax_frontend.Model:
    """A table that is the head, too; or, `transposed`, a matrix that is used both ways round."""
    rng = np.random.default_rng(3)
    params = {
        "tokens": rng.standard_normal((VOCABULARY, width), np.float32),
        "mix": rng.standard_normal((width, 160), np.float32) / 6,
        "norm": np.ones(width, np.float32),
    }

    def apply(params: Any, tokens: Any) -> Any:
        x = params["tokens"][tokens] * params["norm"]
        x = x + (jnp.tanh(x @ params["mix"]) @ params["mix"].T if transposed else jnp.cumsum(x, 1))
        return x @ params["tokens"].T

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, LENGTH), np.int32)])


@pytest.mark.parametrize(
    ("width", "transposed", "frozen"),
    [(34, False, "int4"), (34, True, "int4"), (33, False, "int4"), (64, True, "int4-blockwise")],
)
def test_a_matrix_with_two_readers_is_stored_once(width: int, transposed: bool, frozen: str) -> None:
    """But where the rows of a table end within a byte, which its kernel would not find."""
    int4 = {"tokens": 0, "mix": 1} if transposed else {"tokens": 0}
    program = check_steps(tied(width, transposed), int4, 1.0, 3, update={"norm": 1}, frozen=frozen)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(program.data))
    stored = {t.buffer for graph in model.subgraphs for t in graph.tensors if t.type == schema.TensorType.INT4}
    assert len(stored) == len(int4) + width % 2


@pytest.mark.parametrize("xnnpack", [True, False])
@pytest.mark.parametrize("dtype", [INT4, np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize(
    ("shape", "blocks"), [((5, 7), 0), ((48, 32), 0), ((2100, 1024), 0), ((48, 96), 3), ((2100, 1024), 32)], ids=str
)
def test_kernels_meet_integers_exactly(shape: tuple[int, int], blocks: int, dtype: np.dtype, xnnpack: bool) -> None:
    """Products both ways round, rows of a table; a large matrix is unpacked in pieces; scales are powers of two."""
    rng = np.random.default_rng(0)
    integers = rng.integers(-8, 8, shape).astype(dtype)
    b = Builder()
    x, dy = (b.input(name, TensorType((1, 3, n))) for name, n in (("x", shape[1]), ("dy", shape[0])))
    indices = b.input("indices", TensorType((2, 2), INT32))
    w = Value(TensorType(shape, dtype), "w")
    b.graph.constants[w] = integers
    scales = [b.constant(2.0 ** rng.integers(-3, 4, (shape[0], blocks)), np.float16)] if blocks else []
    b.graph.outputs = {"y": b(ops.CastMatMul(adj_y=True), x, w, *scales), "dx": b(ops.CastMatMul(), dy, w, *scales)}
    b.graph.outputs["rows"] = b(ops.CastGather(), w, indices, *scales)
    feed = {"x": rng.integers(-9, 9, (1, 3, shape[1])), "dy": rng.integers(-9, 9, (1, 3, shape[0]))}
    feed = {name: array.astype(np.float32) for name, array in feed.items()}
    feed["indices"] = rng.integers(0, shape[0], (2, 2)).astype(np.int32)
    lowered = to_builtins(b.graph, target("litert-2"))
    contracted = [
        node for node in lowered.nodes if isinstance(node.op, tfl.CastWeight) and node.inputs[0].dtype == dtype
    ]
    assert len(contracted) == (4 if shape[0] > 1024 else 2)
    found, expected = run(file(lowered), feed, xnnpack), evaluate(b.graph, feed)[0]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("adj_y", [True, False])
def test_no_piece_of_a_head_is_large(adj_y: bool) -> None:
    """A head of many words is unpacked in as many pieces as it takes, and theirs are all of its rows."""
    b = Builder()
    x = b.input("x", TensorType((1, 24_000 if not adj_y else 1024)))
    w = b.constant(np.broadcast_to(np.arange(1024).astype(np.int8), (24_000, 1024)))
    b.graph.outputs = {"y": b(ops.CastMatMul(adj_y), x, w)}
    lowered = to_builtins(b.graph, target("litert-2"))
    contracted = [node.output.shape for node in lowered.nodes if isinstance(node.op, tfl.CastWeight)]
    assert sum(rows for rows, _ in contracted) == 24_000
    assert max(rows * columns for rows, columns in contracted) <= LARGEST_PIECE


def test_no_float32_copy_is_kept(tmp_path: Path) -> None:
    """Eight matrices, 33 MB as float32, are met forward and backward: one at a time is unpacked."""
    rng = np.random.default_rng(0)
    params = {f"w{i}": rng.standard_normal((1024, 1024), np.float32) / 32 for i in range(8)}

    def apply(params: Any, x: Any) -> Any:
        x = x * params["gain"]
        for i in range(8):
            x = x + jnp.tanh(x @ params[f"w{i}"])
        return x[:, :5]

    params["gain"] = np.ones(1024, np.float32)
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 1024), np.float32)])
    program = converter.build(model, update={"gain": 1}, batch=4, frozen="int4", check=False, signatures=("train",))
    program.write(tmp_path / "net.tflite")
    grown = grown_by_training(tmp_path / "net.tflite")
    assert program.costs["mapped_bytes"] < 5 << 20
    assert grown.peak < 4 * 4 << 20  # a matrix, as a product reads it, and what unpacks it


@pytest.mark.parametrize(
    ("where", "frozen", "why"),
    [
        *((f"tflite-2.{n}", form, "constants of four bits") for n in (14, 16) for form in ("int4", "int4-dynamic")),
        ("gpu,tflite-2.16", "int4", "such weights right. Take frozen='float32'"),
        *((engine, "int4-dynamic", "rounds no activation") for engine in ("gpu", "hexagon", "web", "gpu,litert-2")),
    ],
)
def test_targets_that_do_not_read_four_bits_are_refused(where: str, frozen: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"{frozen}'.*{why}"):
        converter.build(DECODER, update="lora-4", frozen=frozen, target=where)


def test_where_nothing_is_frozen_nothing_is_rounded() -> None:
    with pytest.raises(UsageError, match="no frozen layer becomes int4"):
        converter.build(DECODER, update="full", frozen="int4")


def test_samples_say_what_it_costs() -> None:
    x, y = ids(BATCH, 0, LENGTH, VOCABULARY)
    options = {"update": "lora-4", "frozen": "int4", "batch": BATCH, "check": False}
    with pytest.warns(QuantizationWarning, match="int4 for frozen layers: agreement"):
        report = converter.build(DECODER, calibration=x, **options).quantization
    assert 0.01 < report.output_error < 0.5
    report = converter.build(DECODER, calibration=(x, y), **options).quantization
    params = jax.tree_util.tree_map(jnp.asarray, rounded(DECODER, matrices(DECODER)))
    for figures, weights in ((report.before, DECODER.params), (report.after, params)):
        logits = DECODER.apply(jax.tree_util.tree_map(jnp.asarray, weights), x)
        expected = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1).mean()
        assert figures["loss"] == pytest.approx(float(expected), abs=1e-4)
    assert converter.build(DECODER, **options).quantization.output_error is None


@pytest.mark.quick
def test_exported_and_saved(tmp_path: Path) -> None:
    """The plain model has the integers, and adapters beside them; a state is of a program with the same ones."""
    options = {"update": "lora-4", "batch": BATCH, "check": False, "signatures": ("train", "infer", "infer_1")}
    program = converter.build(DECODER, frozen="int4", **options)
    x, y = ids(BATCH, 0, LENGTH, VOCABULARY)
    with TrainingSession(program.data) as session:
        session.train(x, y)
        session.save(tmp_path / "mine.state")
        expected = session.infer(x)
        np.testing.assert_allclose(session.infer(x[:1]), expected[:1], atol=1e-5)
    program.export_inference(tmp_path / "mine.tflite", tmp_path / "mine.state")
    infer = Interpreter(str(tmp_path / "mine.tflite")).get_signature_runner("infer")
    np.testing.assert_array_equal(infer(ids=x)["output"], expected)
    numbers = sum(weight.size for weight in jax.tree_util.tree_leaves(DECODER.params))
    assert (tmp_path / "mine.tflite").stat().st_size < 2 * numbers
    other = TrainingSession(converter.build(DECODER, **options).data)
    with other, pytest.raises(UsageError, match="the frozen layers are rounded there, float32 here"):
        other.restore(tmp_path / "mine.state")


def test_shapes_alone_are_planned_alike() -> None:
    options = {"frozen": "int4", "batch": BATCH}
    (planned,) = converter.compare_schemes(llama.build(layers=2, seed=None, **SHAPE), ["lora-4"], **options)
    built = converter.build(DECODER, update="lora-4", check=False, **options).costs
    assert planned.items() - {("scheme", planned["scheme"])} <= built.items()
    (exact,) = converter.compare_schemes(DECODER, ["lora-4"], batch=BATCH)
    assert planned["mapped_bytes"] < exact["mapped_bytes"]
