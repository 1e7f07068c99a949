"""Optimizers that draw random numbers, in the stock interpreter: as optax distributes them, and new in each step."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import converter
import jax_frontend
from converter.ir import evaluate
from converter.training.optim.notes import climbing
from converter.training.optim.trace import trace_optimizer

ETA, GAMMA = 0.04, 0.55
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 48)).astype(np.float32)
Y = RNG.standard_normal((2, 40)).astype(np.float32)
WEIGHTS = {"w": np.zeros((48, 40), np.float32), "b": np.zeros(40, np.float32)}


def noise_alone(key: Any) -> optax.GradientTransformation:
    """Moves the weights by nothing but noise."""
    return optax.chain(optax.set_to_zero(), optax.add_noise(ETA, GAMMA, key=key), optax.scale(-1.0))


def build(optimizer: Any, **options: Any) -> Any:
    model = jax_frontend.Model(lambda p, x: x @ p["w"] + p["b"], WEIGHTS, [jax.ShapeDtypeStruct((1, 48), jnp.float32)])
    options = {"update": "full", "check": False, "batch": 2, **options}
    return converter.build(model, loss=lambda o, y: ((o - y) ** 2).mean(-1), optimizer=optimizer, **options)


def moves(session: Any, steps: int) -> list[np.ndarray]:
    """What each step changes in the weights, flat."""
    found = []
    for _ in range(steps):
        before = session.parameters()["w"]
        session.train(X, Y)
        found.append((session.parameters()["w"] - before).ravel())
    return found


@pytest.mark.quick
@pytest.mark.parametrize("form", [{}, {"micro_batch": 1}, {"state": "split"}], ids=["whole", "micro-batches", "split"])
def test_noise_is_that_of_optax_and_new_in_each_step(form: dict[str, Any]) -> None:
    with converter.runtime.TrainingSession(build(noise_alone(3), **form).data) as session:
        found = moves(session, 4)
    for count, move in enumerate(found, 1):
        deviation = np.sqrt(ETA / count**GAMMA)  # as optax anneals it
        assert stats.kstest(move / deviation, "norm").pvalue > 1e-3
    related = np.corrcoef(found) - np.eye(len(found))
    assert np.abs(related).max() < 4 / np.sqrt(found[0].size)
    pairs = np.stack(found[:2])
    assert abs(np.corrcoef(pairs[:, 1:].ravel(), pairs[:, :-1].ravel())[0, 1]) < 4 / np.sqrt(pairs.size)


def test_noise_follows_from_the_key_and_goes_on_from_a_saved_state(tmp_path: Path) -> None:
    program = build(noise_alone(3)).data
    with converter.runtime.TrainingSession(program) as session:
        first = moves(session, 2)
        session.save(tmp_path / "state")
        rest = moves(session, 2)
        session.reset()
        np.testing.assert_array_equal(moves(session, 2), first)
    with converter.runtime.TrainingSession(program) as session:
        session.restore(tmp_path / "state")
        np.testing.assert_array_equal(moves(session, 2), rest)
    with converter.runtime.TrainingSession(build(noise_alone(jax.random.key(4))).data) as session:
        other = moves(session, 1)[0]
    assert abs(np.corrcoef(other, first[0])[0, 1]) < 0.1


def test_noise_is_added_to_what_the_gradient_does() -> None:
    """The mean over many keys' worth of numbers is plain descent; so small noise is nearly it."""
    quiet, noisy = build(optax.sgd(0.1)), build(optax.noisy_sgd(0.1, eta=1e-8, key=0))
    assert any("random numbers of its own in each step" in note.why for note in noisy.notes)
    assert not any("random" in note.why for note in quiet.notes)
    found = []
    for program in (quiet, noisy):
        with converter.runtime.TrainingSession(program.data) as session:
            for _ in range(3):
                session.train(X, Y)
            found.append(session.parameters()["w"])
    assert 0 < np.abs(found[1] - found[0]).max() < 1e-3


def test_a_layer_trains_in_part_with_noise() -> None:
    """Noise looks at no rows and columns, so weights are kept and cut as with any optimizer."""
    program = build(noise_alone(0), update={"w": 0.25, "b": 1})
    with converter.runtime.TrainingSession(program.data) as session:
        session.train(X, Y)
        moved = session.parameters()["w"] != 0
    assert moved.sum() == moved.size // 4


@pytest.mark.parametrize("key", [jax.random.PRNGKey(7), jax.random.key(7), jax.random.key(7, impl="rbg")])
def test_all_kinds_of_keys(key: Any) -> None:
    """Keys of any kind, several in one array, which are handed on, split and folded."""

    def init(params: Any) -> Any:
        return {"keys": jax.random.split(key, 3), "count": jnp.zeros((), jnp.int32)}

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        keys, count = state["keys"], state["count"]
        drawn = jax.random.uniform(jax.random.fold_in(keys[0], count), (50,))
        after = jnp.stack([keys[1], keys[2], jax.random.split(keys[0])[0]])
        return {"b": gradients["b"] + drawn}, {"keys": after, "count": count + 1}

    program = trace_optimizer(optax.GradientTransformation(init, update), {"b": np.zeros(50, np.float32)})
    state, seen = dict(program.slots), []
    assert program.keys == ("optimizer/keys",)
    assert state["optimizer/keys"].shape == (3, 2)
    for _ in range(7):
        given = {"gradient/b": np.zeros(50), "parameter/b": np.zeros(50), **state}
        made = evaluate(program.graph, {v.name: given[v.name] for v in program.graph.inputs})[0]
        seen.append(made["update/b"])
        before, state = state, {name: made[name] for name in state}
        np.testing.assert_array_equal(state["optimizer/keys"][:2], before["optimizer/keys"][1:])
        assert np.array_equal(state["optimizer/keys"], np.round(state["optimizer/keys"]))
    drawn = np.stack(seen)
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn) - np.eye(7)).max() < 0.6


def test_an_optimizer_that_draws_by_a_key_of_its_own_is_refused() -> None:
    """Its numbers would be the same in each step."""

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -g + jax.random.normal(jax.random.key(0), g.shape), gradients), state

    with pytest.raises(converter.UnsupportedError, match="random"):
        trace_optimizer(optax.GradientTransformation(lambda p: (), update), {"b": np.zeros(5, np.float32)})


def test_noise_larger_than_the_gradient_is_no_ascent() -> None:
    for eta in (1.0, 1e4):
        assert climbing(optax.noisy_sgd(0.1, eta=eta, key=1), {"w": (2, 3), "b": (3,)}) == []
        up = optax.chain(optax.add_noise(eta, 0.5, key=1), optax.scale(0.1))
        assert climbing(up, {"w": (2, 3), "b": (3,)}) == ["w", "b"]
