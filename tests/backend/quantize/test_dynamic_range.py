"""Frozen int4 weights whose products round what they read, against dynamic range quantisation written down anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.stages import to_builtins
from converter.backend.targets import target
from converter.ir import INT4, Builder, LazyArray, StoredIntegers, TensorType, ops
from converter.ir.scales import int4_rows
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from examples import llama
from tests.backend.stock import file, run

WIDTH, ROWS = 96, 4
RNG = np.random.default_rng(7)


def asymmetric(x: Any) -> Any:
    """Rows as XNNPACK rounds them: 256 steps from the least number, or 0, to the largest."""
    least, largest = jnp.minimum(x.min(-1, keepdims=True), 0), jnp.maximum(x.max(-1, keepdims=True), 0)
    steps = jnp.where(largest > least, 255 / (largest - least), 1)
    from_least, from_largest = -128 - least * steps, 127 - largest * steps
    zero = jnp.rint(jnp.where(-128 + 127 + (least + largest) * steps > 0, from_least, from_largest))
    return (jnp.clip(jnp.rint(x * steps) + zero, -128, 127) - zero) / steps


def symmetric(x: Any) -> Any:
    """Rows as the interpreter's own kernel rounds them: 127 steps on either side of 0."""
    step = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    return np.rint(x / np.where(step > 0, step, 1)) * step


@pytest.mark.parametrize(("xnnpack", "rounded"), [(True, asymmetric), (False, symmetric)], ids=["xnnpack", "builtin"])
@pytest.mark.parametrize("columns", [1, 7, 160])
def test_kernels_multiply_rounded_rows(xnnpack: bool, rounded: Callable, columns: int) -> None:
    """Rows of one sign, of zeros, tiny and large ones; what is exact is another number."""
    integers = RNG.integers(-7, 8, (columns, WIDTH)).astype(INT4)
    sizes = (10.0 ** np.arange(-3, 5)).astype(np.float32).reshape(2, 4, 1)
    x = sizes * RNG.standard_normal((2, 4, WIDTH)).astype(np.float32)
    x[0, 1], x[1, 0] = 0, np.abs(x[1, 0])
    b = Builder()
    given = b.input("x", TensorType(x.shape))
    b.graph.outputs["y"] = b(ops.DynamicRangeMatMul(), given, b.constant(integers))
    found = run(file(to_builtins(b.graph, target("litert-2"))), {"x": x}, xnnpack)["y"]
    expected, exact = (rows @ integers.astype(np.float32).T for rows in (np.asarray(rounded(x)), x))
    largest = np.abs(exact).max(-1, keepdims=True)
    assert (np.abs(found - expected) <= 1e-5 * largest + 1e-30).all()
    assert (np.abs(found - exact).max() > 1e-4 * largest).any()
    np.testing.assert_array_equal(found[0, 1], 0)


def net() -> tuple[jax_frontend.Model, dict[str, np.ndarray]]:
    """Two frozen layers between what trains, and a frozen head."""
    params = {
        "gain": 1 + RNG.standard_normal(WIDTH).astype(np.float32) / 8,
        "first": RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8,
        "bias": RNG.standard_normal(WIDTH).astype(np.float32) / 8,
        "second": RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8,
        "head": RNG.standard_normal((WIDTH, 64)).astype(np.float32) / 4,
    }

    def apply(params: Any, x: Any) -> Any:
        h = jnp.tanh(x * params["gain"] @ params["first"] + params["bias"])
        return (x + h @ params["second"]) @ params["head"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, WIDTH), np.float32)]), params


@jax.custom_vjp
def product(x: Any, w: Any) -> Any:
    """Rounded rows forward, and backward as if nothing were."""
    return asymmetric(x) @ w


product.defvjp(lambda x, w: (product(x, w), w), lambda w, dy: (dy @ w.T, None))


@pytest.mark.quick
def test_a_step_rounds_forward_and_is_exact_backward() -> None:
    model, params = net()
    program = converter.build(
        model,
        optimizer=optax.sgd(0.1),
        update={"gain": 1, "bias": 1},
        batch=ROWS,
        frozen="int4-dynamic",
        check=False,
    )
    fixed = {}
    for name in ("first", "second", "head"):
        integers, scales = int4_rows(params[name].T)
        fixed[name] = (integers.astype(np.float32) * scales[:, None]).T
    x, y = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32), np.arange(ROWS, dtype=np.int32)

    def loss(trained: Any, multiply: Callable) -> Any:
        h = jnp.tanh(multiply(x * trained["gain"], fixed["first"]) + trained["bias"])
        logits = (x + multiply(h, fixed["second"])) @ fixed["head"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1).mean()

    trained = {name: params[name] for name in ("gain", "bias")}
    expected, gradients = jax.value_and_grad(loss)(trained, product)
    exact, _ = jax.value_and_grad(loss)(trained, jnp.matmul)
    with TrainingSession(program.data) as session:
        scored = session.evaluate(x, y)["loss"]
        found = session.train(x, y)
        for name, array in session.parameters().items():
            update = (array - params[name]) / -0.1
            assert np.linalg.norm(update - gradients[name]) <= 1e-3 * np.linalg.norm(gradients[name]), name
    assert found == pytest.approx(float(expected), abs=2e-5)
    assert scored == pytest.approx(float(expected), abs=2e-5)
    assert abs(float(exact - expected)) > 2e-4  # else the test could not tell them apart


@pytest.mark.quick
def test_all_signatures_of_a_decoder_round_alike_and_the_file_says_so() -> None:
    decoder = llama.build(layers=2, width=64, heads=4, key_heads=2, length=8, vocabulary=131)
    options: dict[str, Any] = {"update": "lora-4", "batch": 2, "check": False, "frozen": "int4-dynamic"}
    program = converter.build(decoder, blocks="on", **options)

    def rounding(name: str) -> int:
        return sum(isinstance(n.op, tfl.DynamicRange) for n in program.signatures[name].nodes)

    (count,) = {rounding(name) for name in ("evaluate", "infer")}
    assert 0 < count <= rounding("train")
    forms = [one.form for one in program.quantization.layers if one.operator == "FULLY_CONNECTED"]
    assert forms.count("int4-dynamic") == count
    assert forms.count("int4") == 1  # the head
    assert program.manifest.frozen == "int4-dynamic"
    (note,) = (note for note in program.notes if note.status == "rounded")
    assert f"in {count} frozen dense layers" in note.why
    assert "straight-through" in note.why


class Stored(LazyArray):
    """A matrix of integers as a file may have them, those of each row with one scale."""

    shape, dtype = (WIDTH, WIDTH), np.dtype(np.float32)

    def __init__(self, least: int) -> None:
        self._numbers = RNG.integers(least, 8, self.shape)

    def rows(self, start: int, stop: int) -> np.ndarray:
        return (self._numbers[start:stop] / 8).astype(np.float32)

    def integers(self) -> StoredIntegers:
        def rows(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
            return self._numbers[start:stop].astype(INT4), np.full((stop - start, 1), 0.125, np.float16)

        return StoredIntegers(INT4, 1, np.dtype(np.float16), rows)


def test_exact_where_a_file_has_the_lowest_integer() -> None:
    """The interpreter's own kernel would give wrong numbers."""
    params = {"gain": np.ones(WIDTH, np.float32), "all": Stored(-8), "but lowest": Stored(-7)}

    def apply(params: Any, x: Any) -> Any:
        h = jnp.tanh(x * params["gain"] @ params["all"].T)
        return jnp.tanh(h @ params["but lowest"].T) * params["gain"] @ jnp.ones((WIDTH, 3))

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, WIDTH), np.float32)])
    program = converter.build(model, update={"gain": 1}, batch=2, frozen="int4-dynamic", check=False)
    assert {one.layer: one.form for one in program.quantization.layers} == {"all": "int4", "but lowest": "int4-dynamic"}


def test_where_nothing_would_be_rounded_it_is_refused() -> None:
    model, _ = net()
    with pytest.raises(UsageError, match="int4-dynamic' rounds nothing"):
        converter.build(model, update={"first": 1, "second": 1}, batch=2, frozen="int4-dynamic")


def test_exact_where_no_kernel_multiplies_so() -> None:
    """Scales along the sum, a head, and rows that end within a byte."""
    params = {
        "odd": RNG.standard_normal((65, 64)).astype(np.float32),
        "both": RNG.standard_normal((64, 64)).astype(np.float32),
        "gain": np.ones(65, np.float32),
    }

    def apply(params: Any, x: Any) -> Any:
        h = jnp.tanh(x * params["gain"] @ params["odd"])
        return jnp.tanh(h @ params["both"]) @ params["both"].T @ params["both"]

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 65), np.float32)])
    program = converter.build(model, update={"gain": 1}, batch=2, frozen="int4-dynamic", check=False)
    assert [one.form for one in program.quantization.layers] == ["int4-dynamic", "int4", "int4", "int4"]
