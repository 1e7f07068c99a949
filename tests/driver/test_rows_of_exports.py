"""Exported plain models, resized to other numbers of rows: each row is what the framework makes of it, or none is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import pocketune
from tests.driver.exported_rows import FIXED, FUNCTIONS, LAYERS, function, layer, rows_of

COUNTS = (1, 2, 3, 6)
#: With the delegate, and with the runtime's own kernels alone.
KERNELS = (OpResolverType.AUTO, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
#: Of the functions and of the layers, in the quick suite.
HARD = (
    "arctan",
    "sort",
    "argsort",
    "top_k",
    "transposed convolution",
    "piecewise",
    "numbers that no row decides",
    "scan",
)
SOME = ("Conv1DTranspose", "a U-Net", "LSTM, all steps", "LSTM, as wide as rows", "MultiHeadAttention")


def check(path: Path, reference: Callable[[np.ndarray], Any], shape: tuple[int, ...], name: str) -> None:
    """Compare what a file makes of rows with a function of them; one interpreter takes all numbers of them."""
    for kernels in KERNELS:
        runner = Interpreter(str(path), experimental_op_resolver_type=kernels).get_signature_runner("infer")
        (given,) = runner.get_input_details()
        for count in COUNTS:
            x = rows_of(shape, count)
            (found,) = runner(**{given: x}).values()
            expected = np.asarray(reference(x))
            assert found.shape == expected.shape, name
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name}, {count} rows")


def of_function(name: str, batch: int) -> tuple[pocketune.Program, Callable[[Any], Any], tuple[int, ...]]:
    computed, reference, shape = function(name)
    inputs = [jax.ShapeDtypeStruct((1, *shape), jnp.float32)]
    model = pocketune.Model(computed, {"w": np.ones(shape[-1], np.float32)}, inputs=inputs)
    made = pocketune.build(model, loss="mse", batch=batch, signatures=("train", "infer"), check=False)
    return made, reference, shape


def quick(names: Iterable[str], some: Sequence[str]) -> list[Any]:
    """All names, most of them in the slow suite."""
    return [name if name in some else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("batch", [4, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", quick(FUNCTIONS, HARD))
def test_functions(name: str, batch: int, tmp_path: Path) -> None:
    program, reference, shape = of_function(name, batch)
    check(program.export_inference(tmp_path / "plain.tflite"), reference, shape, name)
    assert program.manifest.signatures["infer"].fixed is None


@pytest.mark.parametrize("name", FIXED)
def test_what_is_for_its_own_rows_says_so_and_takes_no_others(name: str, tmp_path: Path) -> None:
    program, reference, shape = of_function(name, 4)
    path = program.export_inference(tmp_path / "plain.tflite")
    assert program.manifest.signatures["infer"].fixed
    assert any(note.subject == "exported model" and note.status == "takes 4 rows" for note in program.notes)
    for kernels in KERNELS:
        runner = Interpreter(str(path), experimental_op_resolver_type=kernels).get_signature_runner("infer")
        x = rows_of(shape, 4)
        np.testing.assert_allclose(runner(x=x)["output"], reference(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError):
            runner(x=rows_of(shape, 3))


def test_a_program_of_one_row_is_exported_for_any_number_of_them(tmp_path: Path) -> None:
    program, reference, shape = of_function("top_k", 1)
    check(program.export_inference(tmp_path / "plain.tflite"), reference, shape, "top_k")


@pytest.mark.quick
@pytest.mark.parametrize("name", quick(LAYERS, SOME))
def test_layers(name: str, tmp_path: Path) -> None:
    model, shape = layer(name)
    program = pocketune.build(model, loss="mse", batch=4, signatures=("train", "infer"), check=False)
    path = program.export_inference(tmp_path / "plain.tflite")
    check(path, lambda x: model(x, training=False), shape, name)
    with pocketune.TrainingSession(program.data) as session:
        session.train(rows_of(shape, 4), np.zeros(program.manifest.signatures["train"].inputs[1].shape, "f"), 0.01)
        program.export_inference(path, session.state())
        check(path, session.infer, shape, name)


@pytest.mark.parametrize("target", ["litert-2", "tflm"])
def test_of_one_row_with_integers_in_front_it_has_the_same_integers(target: str, tmp_path: Path) -> None:
    """A build for one row is exported for any number of them, with the scales that its own `infer` has."""
    rng = np.random.default_rng(0)
    params = {
        "conv": rng.standard_normal((3, 3, 2, 8), np.float32) / 4,
        "deep": rng.standard_normal((3, 3, 1, 8), np.float32) / 3,
        "head": rng.standard_normal((8, 3), np.float32),
    }

    def apply(p: Any, x: Any) -> Any:
        form = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, p["conv"], (1, 1), "SAME", **form))
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, p["deep"], (1, 1), "SAME", feature_group_count=8, **form))
        return x.mean((1, 2)) @ p["head"]

    model = pocketune.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 12, 12, 2), jnp.float32)])
    x = rng.standard_normal((6, 12, 12, 2), np.float32)
    options: dict[str, Any] = {"update": "head", "batch": 1, "target": target, "check": False}
    program = pocketune.build(model, frozen="int8", calibration=x, **options)
    assert not [note for note in program.notes if note.subject == "exported model"]
    program.export_inference(tmp_path / "plain.tflite")
    interpreter = Interpreter(str(tmp_path / "plain.tflite"))
    assert np.int8 in {one["dtype"] for one in interpreter.get_tensor_details()}
    with pocketune.TrainingSession(program.data) as session:
        found = interpreter.get_signature_runner("infer")(x=x)["output"]
        np.testing.assert_allclose(found, session.infer(x), atol=1e-5)
