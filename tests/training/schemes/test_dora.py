"""DoRA of weights that are rounded, against the formula in JAX with the very weights that the program meets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jax_frontend
import pocketune
from converter.ir import INT4, ops
from converter.passes.manager import Watch, watched
from converter.runtime import TrainingSession
from converter.support.errors import UnsupportedError, UsageError
from tests.training.schemes.by_hand import convolutional, tied_model

ROWS, STEPS = 4, 20
SHAPES = {"first": (64, 96), "second": (96, 64), "head": (64, 3)}
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, by blocks": {"blocks": "on"},
    "float16": {"frozen": "float16"},
    "int4": {"frozen": "int4"},
    "int4, by blocks": {"frozen": "int4", "blocks": "on"},
    "int4-blockwise": {"frozen": "int4-blockwise"},
}


def weights(form: str) -> dict[str, np.ndarray]:
    """Weights that rounding leaves as they are, some of float16."""
    rng, made = np.random.default_rng(0), {}
    for name, (inputs, outputs) in SHAPES.items():
        block = 32 if "blockwise" in form else inputs
        integers = rng.integers(-6, 7, (outputs, inputs // block, block))
        integers[..., 0] = 7  # decides the scale, and of float16 too
        scales = 2.0 ** rng.integers(-6, -4, (outputs, inputs // block, 1))
        made[name] = (integers * scales).reshape(outputs, inputs).T.astype(np.float32)
    if form == "float16":
        made["first"] = rng.standard_normal(SHAPES["first"], np.float32) / 8
    return made


def apply(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["first"]) @ params["second"] @ params["head"]


def model(form: str) -> jax_frontend.Model:
    return jax_frontend.Model(apply, weights(form), [jax.ShapeDtypeStruct((1, 64), "float32")])


@pytest.mark.quick
@pytest.mark.parametrize("form", FORMS)
def test_twenty_steps_equal_the_formula_of_the_weights_as_they_are_met(form: str) -> None:
    rng, rate = np.random.default_rng(1), 0.01
    x, y = rng.standard_normal((ROWS, 64), np.float32), np.arange(ROWS, dtype=np.int32) % 3
    built = pocketune.build(
        model(form),
        update={"first": pocketune.LoRA(4, 8, dora=True), "second": pocketune.LoRA(4, 12, dora=True)},
        batch=ROWS,
        optimizer=optax.adam(1.0, eps=1e-4),
        signatures=("train", "infer", "infer_1"),
        **FORMS[form],
    )
    if "frozen" in FORMS[form]:
        # The head is small; each matrix is told once, not for each product that reads it.
        assert [layer.form for layer in built.quantization.layers].count("float32") == 1
        assert len(built.quantization.layers) == 3
    contracted = {
        name: w.astype(np.float16).astype("f") if form == "float16" else w for name, w in weights(form).items()
    }

    def whole(trained: Any) -> Any:
        changed = dict(contracted)
        for name, scale in (("first", 2), ("second", 3)):
            change = contracted[name] + scale * trained[f"{name}/lora_a"] @ trained[f"{name}/lora_b"]
            lengths = jax.lax.stop_gradient(jnp.linalg.norm(change, axis=0))
            changed[name] = change * (trained[f"{name}/lora_magnitude"] / lengths)
        return changed

    def loss(trained: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(apply(whole(trained), x), y).mean()

    with TrainingSession(built.data) as session:
        begin = session.parameters()
        for name in ("first", "second"):
            lengths = np.linalg.norm(contracted[name].astype(np.float64), axis=0)
            np.testing.assert_allclose(begin[f"{name}/lora_magnitude"], lengths, rtol=1e-6)
        np.testing.assert_allclose(session.infer(x), apply(contracted, x), rtol=1e-4, atol=1e-5)
        found = [session.train(x, y, rate) for _ in range(STEPS)]
        after, given = session.parameters(), session.infer(x)
        np.testing.assert_allclose(session.infer(x[:1]), given[:1], rtol=1e-5, atol=1e-5)
    optimizer = optax.adam(1.0, eps=1e-4)
    trained: Any = {name: jnp.asarray(array) for name, array in begin.items()}
    slots = optimizer.init(trained)
    losses = []
    for _ in range(STEPS):
        value, gradients = jax.value_and_grad(loss)(trained)
        updates, slots = optimizer.update(gradients, slots, trained)
        trained = jax.tree.map(lambda p, u: p + rate * u, trained, updates)
        losses.append(float(value))
    np.testing.assert_allclose(found, losses, rtol=1e-4, atol=1e-6)
    assert losses[-1] < 0.5 * losses[0], "the test would pass without training"
    for name, array in trained.items():
        moved = np.linalg.norm(array - begin[name])
        assert np.linalg.norm(after[name] - array) < 1e-3 * moved, name
    np.testing.assert_allclose(given, apply(whole(trained), x), rtol=1e-3, atol=1e-3)


def test_no_product_of_weights_is_rounded() -> None:
    """Of `int4-dynamic` the lengths are those of the integers: what is rounded is what depends on the inputs."""
    options = {"update": "dora-4", "batch": ROWS, "frozen": "int4-dynamic", "signatures": ("train",), "check": False}
    with watched(Watch(dumps="take-norms")) as watch:
        pocketune.build(model("int4"), **options)
    (text,) = [text for name, text in watch.dumped.items() if "model" in name or len(watch.dumped) == 1]
    assert text.count("DynamicRangeMatMul") == 2  # of two layers, the activations
    assert text.count("CastMatMul") == 2  # of their lengths


@pytest.mark.parametrize("axis", [0, 1])
def test_lengths_of_integers_are_those_of_their_numbers(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.ir.ops.linear._AT_ONCE", 24)
    rng = np.random.default_rng(0)
    integers = rng.integers(-7, 8, (7, 12))
    for scales in (rng.random(7, np.float32), rng.random((7, 3), np.float32).astype(np.float16)):
        of = scales.astype(np.float64).reshape(7, -1)
        numbers = integers * np.repeat(of, 12 // of.shape[1], 1)
        found = ops.SquaredNorms(axis, "").evaluate(integers.astype(INT4), scales)
        np.testing.assert_allclose(found, np.square(numbers).sum(1 - axis), rtol=1e-6)
    filter = rng.standard_normal((5, 3, 3, 2), np.float32)
    np.testing.assert_allclose(
        ops.SquaredNorms(0, "").evaluate(filter), np.square(filter.astype(np.float64)).sum((1, 2, 3)), rtol=1e-6
    )


def test_a_column_of_zeros_stays_finite() -> None:
    params = weights("float32")
    params["first"][:, :3] = 0
    made = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 64), "float32")])
    built = pocketune.build(made, update={"first": pocketune.LoRA(2, 4, dora=True)}, batch=ROWS, optimizer="adam")
    x = np.random.default_rng(0).standard_normal((ROWS, 64), np.float32)
    with TrainingSession(built.data) as session:
        losses = [session.train(x, np.arange(ROWS, dtype=np.int32) % 3, 0.01) for _ in range(3)]
        assert np.isfinite(losses).all()
        assert all(np.isfinite(array).all() for array in session.state().values())


@pytest.mark.parametrize(
    ("make", "update", "options", "error", "message"),
    [
        (tied_model, {"tied": pocketune.LoRA(2, dora=True)}, {}, UnsupportedError, "used both ways round"),
        (tied_model, {"heads": pocketune.LoRA(2, dora=True)}, {}, UnsupportedError, "several matrices in one"),
        (
            convolutional,
            {"rows/kernel": pocketune.LoRA(2, dora=True)},
            {"frozen": "int8", "calibration": np.zeros((8, 9, 8, 3), np.float32)},
            UsageError,
            "frozen='int8' does not go together with DoRA .rows/kernel.",
        ),
    ],
    ids=["tied", "a stack", "int8"],
)
def test_what_is_refused(make: Any, update: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pocketune.build(make(), update=update, check=False, **options)


def test_dropout_is_refused() -> None:
    with pytest.raises(UsageError, match="dora does not go together with dropout"):
        pocketune.LoRA(2, dora=True, dropout=0.1)


def test_a_plan_needs_no_numbers() -> None:
    shapes = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}
    made = jax_frontend.Model(apply, shapes, [jax.ShapeDtypeStruct((1, 64), "float32")])
    for frozen in ("float32", "float16", "int4"):
        (row,) = pocketune.compare_schemes(made, ["dora-4"], frozen=frozen)
        assert row["trained_parameters"] == 4 * 2 * (64 + 96) + 96 + 64 + 3 * 64
