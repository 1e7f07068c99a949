"""Augmentation in the training step: the same function in JAX with the same random words, written here once more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.ir import TensorType, Value
from converter.ir.evaluate import evaluate
from converter.ir.random_numbers import call_counter
from converter.runtime import TrainingSession
from converter.support.errors import UnsupportedError, UsageError
from converter.training.augment import augmentation
from tests.randomness import key_of

BATCH, RATE = 8, 0.1
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, 5, 6)).astype(np.float32)
Y = RNG.standard_normal((BATCH, 2)).astype(np.float32)


def noise(x: Any, key: Any) -> Any:
    one, other = jax.random.split(key)
    scale = jax.random.uniform(one, (x.shape[0], 1, 1), minval=0.5, maxval=1.5)
    return x * scale + 0.1 * jax.random.normal(jax.random.fold_in(other, 3), x.shape)


def flips(x: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, (x.shape[0], 1, 1)), x[:, ::-1], x)


def shifts(x: Any, key: Any) -> Any:
    """Each row by some places of its own."""

    def one(row: Any, key: Any) -> Any:
        places = jax.random.randint(key, (2,), -2, 3)
        padded = jnp.pad(row, 2)
        return jax.lax.dynamic_slice(padded, 2 + places, row.shape)

    return jax.vmap(one)(x, jax.random.split(key, x.shape[0]))


def rolls(x: Any, key: Any) -> Any:
    keys = jax.random.split(key, x.shape[0])
    return jax.vmap(lambda row, key: jnp.roll(row, jax.random.randint(key, (), 0, 4), 0))(x, keys)


def others(x: Any, key: Any) -> Any:
    """Further functions of jax.random, which are made of the same."""
    a, b, c = jax.random.split(jax.random.clone(key), 3)
    cut = jax.random.laplace(a, x.shape)
    grown = jax.random.exponential(b, x.shape) + jax.random.gumbel(c, x.shape) + jax.random.rademacher(a, x.shape)
    large = jax.random.randint(b, x.shape, -70000, 1 << 20).astype(jnp.float32)
    return x + cut + grown + 1e-6 * large + jax.random.choice(c, jnp.arange(4.0), x.shape)


def loops(x: Any, key: Any) -> Any:
    keys = jax.random.split(key, 3)
    return jax.lax.scan(lambda x, key: (x + jax.random.uniform(key, x.shape), None), x, keys)[0]


def model(inputs: int = 1) -> jax_frontend.Model:
    w = np.random.default_rng(1).standard_normal((30, 2)).astype(np.float32) / 5

    def apply(params: Any, *x: Any) -> Any:
        return sum(a.reshape(a.shape[0], -1) for a in x) @ params["w"]

    return jax_frontend.Model(apply, {"w": w}, [jax.ShapeDtypeStruct((1, 5, 6), "float32")] * inputs)


@pytest.mark.parametrize("function", [noise, flips, shifts, rolls, others, loops])
def test_random_numbers_are_those_of_the_definition(function: Callable) -> None:
    counter, count = call_counter()
    graph = augmentation(function, [Value(TensorType(X.shape), "x")], counter, count)
    in_jax = jax.jit(function)
    for call in (0, 77):
        found, _ = evaluate(graph, [X], **{counter.name: np.full(1, call, np.float32)})
        np.testing.assert_allclose(found["x"], in_jax(X, key_of(call)), rtol=1e-5, atol=1e-5)


def steps_of_jax(function: Callable, steps: int) -> tuple[list[float], np.ndarray]:
    @jax.jit
    def step(w: Any, key: Any) -> tuple[Any, Any]:
        def loss(w: Any) -> Any:
            return jnp.square(function(X, key).reshape(BATCH, -1) @ w - Y).mean()

        value, slope = jax.value_and_grad(loss)(w)
        return value, w - RATE * slope

    w, losses = model().params["w"], []
    for call in range(steps):
        value, w = step(w, key_of(call))
        losses.append(float(value))
    return losses, np.asarray(w)


@pytest.mark.parametrize(("function", "state"), [(flips, "variables"), (shifts, "stateless"), (flips, "split")])
def test_ten_steps_are_those_of_jax(function: Callable, state: str) -> None:
    program = converter.build(model(), loss="mse", optimizer="sgd", batch=BATCH, state=state, augment=function)
    losses, w = steps_of_jax(function, 10)
    with TrainingSession(program.data) as session:
        plain = session.infer(X)
        np.testing.assert_allclose([session.train(X, Y, RATE) for _ in losses], losses, rtol=1e-4)
        np.testing.assert_allclose(session.parameters()["w"], w, rtol=1e-3, atol=1e-5)
        session.reset()
        np.testing.assert_array_equal(session.infer(X), plain)
        assert session.evaluate(X, Y)["loss"] == pytest.approx(float(np.square(plain - Y).mean()), rel=1e-5)
        assert session.train(X, Y, RATE) == pytest.approx(losses[0], rel=1e-5)
        short = session.train(X[:3], Y[:3], RATE)  # padded: the rows that pad it count nothing
        assert np.isfinite(short)
    assert any(note.subject == "augment" for note in program.notes)


def test_a_saved_training_goes_on_with_other_numbers(tmp_path: Path) -> None:
    program = converter.build(model(), loss="mse", batch=BATCH, augment=noise)
    with TrainingSession(program.data) as session:
        first = [session.train(X, Y, 0.0) for _ in range(2)]
        session.save(tmp_path / "mine.state")
        then = session.train(X, Y, 0.0)
        session.restore(tmp_path / "mine.state")
        assert session.train(X, Y, 0.0) == then
    assert len({*first, then}) == 3


def test_several_inputs_as_the_model_takes_them() -> None:
    def both(inputs: tuple, key: Any) -> tuple:
        first, second = inputs
        return flips(first, key), second * 0

    program = converter.build(model(2), loss="mse", batch=BATCH, augment=both)
    expected = np.square(np.asarray(flips(X, key_of(0))).reshape(BATCH, -1) @ model().params["w"] - Y).mean()
    with TrainingSession(program.data) as session:
        assert session.train((X, X), Y, 0.0) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("state", ["variables", "split"])
def test_micro_batches_and_dropout_count_calls_together(state: str) -> None:
    dropping = model()
    dropping = jax_frontend.Model(
        lambda p, x: jax_frontend.dropout(model().apply(p, x), 0.5), dropping.params, dropping.inputs
    )
    options = {"micro_batch": BATCH // 2, "dropout": "train", "augment": noise, "state": state}
    program = converter.build(dropping, loss="mse", batch=BATCH, **options)
    with TrainingSession(program.data) as session:
        assert len({session.train(X, Y, 0.0) for _ in range(3)}) == 3
        assert session.state()["random/step"] == 6
    with pytest.raises(UsageError, match="augment counts micro-batches"):
        converter.build(model(), loss="mse", batch=BATCH, micro_batch=2, augment=noise, state="stateless")


def test_rows_that_mix_are_seen() -> None:
    def mixed(x: Any, key: Any) -> Any:
        return x + 0.1 * jax.random.uniform(key) * x[::-1]

    program = converter.build(model(), loss="mse", batch=BATCH, augment=mixed)
    assert "augment" in str(program.manifest.signatures["train"].mixing)
    assert not program.manifest.signatures["evaluate"].mixing
    with pytest.raises(UsageError, match="micro-batches"):
        converter.build(model(), loss="mse", batch=BATCH, micro_batch=2, augment=mixed)


def test_int8_layers_read_augmented_inputs() -> None:
    rng = np.random.default_rng(2)
    params = [rng.standard_normal((30, 64)).astype(np.float32) / 5, rng.standard_normal((64, 2)).astype(np.float32) / 8]
    two = jax_frontend.Model(lambda p, x: jax.nn.relu(x.reshape(x.shape[0], -1) @ p[0]) @ p[1], params, model().inputs)
    program = converter.build(
        two, loss="mse", batch=BATCH, update={"*": 1, "0": 0}, frozen="int8", calibration=X, augment=noise
    )
    expected = np.square(np.asarray(two.apply(params, noise(X, key_of(0)))) - Y).mean()
    with TrainingSession(program.data) as session:
        assert session.train(X, Y, 0.0) == pytest.approx(float(expected), rel=0.05)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, key: x + jax.random.normal(jax.random.key(0), x.shape), "with the key that it is given"),
        (lambda x, key: jax.random.permutation(key, x, axis=1), "random bits as they are"),
        (lambda x, key: x + jax.random.bits(key, x.shape), "random bits as they are"),
        (lambda x, key: x + jax.random.gamma(key, 2.0, x.shape), "random numbers"),
        (lambda x, key: x + jax.random.randint(key, x.shape, 0, x.sum().astype(int)), "numbers that are computed"),
    ],
)
def test_what_has_no_form_is_refused(function: Callable, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        converter.build(model(), loss="mse", batch=BATCH, augment=function)


def test_wrong_functions_are_refused() -> None:
    with pytest.raises(UsageError, match=r"must give what it is given, float32\[8, 5, 6\], and gives float32\[8\]"):
        converter.build(model(), loss="mse", batch=BATCH, augment=lambda x, key: x.sum((1, 2)))
    with pytest.raises(UsageError, match="a JAX function"):
        converter.build(model(), loss="mse", batch=BATCH, augment="noise")
    with pytest.raises(UsageError, match="augment makes new samples"):
        converter.build(model(), loss="mse", batch=BATCH, augment=noise, signatures=("train", "features"))
