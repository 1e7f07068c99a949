"""All that optax has: each transformation computes the same, or is refused with what it is and what to use."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import converter
import jax_frontend
from converter.ir import evaluate
from converter.support.errors import UnsupportedError
from converter.training.optim.trace import trace_optimizer
from tests.training.optim.of_optax import MADE, public

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 6)).astype(np.float32)
Y = RNG.standard_normal((5, 3)).astype(np.float32)
WEIGHTS = {"w": (0.4 * RNG.standard_normal((6, 3))).astype(np.float32), "b": np.full(3, 0.1, np.float32)}

#: What each of these is, and what to use.
REFUSED = {
    "contrib.galore": "scale_by_galore projects gradients.*update='lora'",
    "contrib.scale_by_galore": "scale_by_galore projects gradients.*update='lora'",
    "contrib.sophia": "takes second derivatives.*hessian_diagonal_fn",
    "contrib.hutchinson_estimator_diag_hessian": "takes second derivatives.*hessian_diagonal_fn",
    "contrib.differentially_private_aggregate": "clips the gradient of each row.*add_noise",
    "contrib.dpsgd": "clips the gradient of each row.*add_noise",
    "lbfgs": "scale_by_zoom_linesearch searches along.*linesearch=None",
    "scale_by_zoom_linesearch": "scale_by_zoom_linesearch searches along.*polyak_sgd",
    "scale_by_backtracking_linesearch": "scale_by_backtracking_linesearch searches along.*polyak_sgd",
    "lookahead": "lookahead trains two sets of weights.*schedule_free",
    "monitor": "monitor keeps figures.*Leave it out",
    "measure_with_ema": "monitor keeps figures.*Leave it out",
}
#: Whose numbers are not those of JAX: test_random_updates.py.
DRAWING = ("add_noise", "noisy_sgd")
COMPUTED = [name for name in MADE if name not in REFUSED and name not in DRAWING]


def loss(params: Any) -> Any:
    return rows(apply(params, X), Y).mean()


def apply(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def rows(output: Any, y: Any) -> Any:
    return ((output - y) ** 2).mean(-1)


def steps_of_optax(name: str, steps: int) -> Any:
    """The weights before each step and after the last."""
    tx = MADE[name]()
    params: Any = jax.tree.map(jnp.asarray, WEIGHTS)
    state, seen = tx.init(params), [params]
    # SAM takes nothing besides, whatever it says that it is.
    besides = name != "contrib.sam" and isinstance(tx, optax.GradientTransformationExtraArgs)
    for _ in range(steps):
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = tx.update(gradients, state, params, **({"value": value} if besides else {}))
        params = optax.apply_updates(params, updates)
        seen.append(params)
    return seen


def test_every_public_function_of_optax_is_here() -> None:
    assert set(MADE) == set(public())
    assert len(MADE) > 120


@pytest.mark.parametrize("name", COMPUTED)
def test_an_update_is_that_of_optax(name: str) -> None:
    program = trace_optimizer(MADE[name](), WEIGHTS)
    state = dict(program.slots)
    seen = steps_of_optax(name, 5)
    for before, after in pairwise(seen):
        value, gradients = jax.value_and_grad(loss)(before)
        given = {"loss": value, **state}
        given |= {f"gradient/{n}": gradients[n] for n in WEIGHTS} | {f"parameter/{n}": before[n] for n in WEIGHTS}
        made = evaluate(program.graph, {v.name: np.asarray(given[v.name]) for v in program.graph.inputs})[0]
        state = {slot: made[slot] for slot in state}
        for n in WEIGHTS:
            np.testing.assert_allclose(before[n] + made[f"update/{n}"], after[n], rtol=2e-5, atol=2e-5, err_msg=n)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTED)
def test_a_program_trains_as_optax_does(name: str) -> None:
    model = jax_frontend.Model(apply, WEIGHTS, [jax.ShapeDtypeStruct((1, 6), jnp.float32)])
    program = converter.build(model, loss=rows, optimizer=MADE[name](), update="full", batch=5, check=False)
    seen = steps_of_optax(name, 6)
    with converter.runtime.TrainingSession(program.data) as session:
        for before in seen[:-1]:
            assert session.train(X, Y) == pytest.approx(float(loss(before)), rel=2e-5)
        found = session.parameters()
    for n, array in seen[-1].items():
        np.testing.assert_allclose(found[n], array, rtol=2e-5, atol=2e-5, err_msg=n)


@pytest.mark.parametrize(
    "name", ["contrib.momo", "contrib.momo_adam", "contrib.prodigy", "contrib.dadapt_adamw", "lamb"]
)
def test_sums_over_all_that_trains_are_those_of_a_part(name: str) -> None:
    """Where half of a weight trains, optax is given that half; how it is stored does not matter."""
    model = jax_frontend.Model(apply, WEIGHTS, [jax.ShapeDtypeStruct((1, 6), jnp.float32)])
    options = {"update": {"w": 0.5, "b": 1}, "batch": 5, "check": False}
    program = converter.build(model, loss=rows, optimizer=MADE[name](), **options)
    tx = optax.with_extra_args_support(MADE[name]())

    def of_a_part(part: Any) -> Any:
        return loss({"w": jnp.concatenate([part["w"], WEIGHTS["w"][3:]]), "b": part["b"]})

    part: Any = {"w": jnp.asarray(WEIGHTS["w"][:3]), "b": jnp.asarray(WEIGHTS["b"])}
    state = tx.init(part)
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(10):
            value, gradients = jax.value_and_grad(of_a_part)(part)
            updates, state = tx.update(gradients, state, part, value=value)
            part = optax.apply_updates(part, updates)
            assert session.train(X, Y) == pytest.approx(float(value), rel=2e-5)
        found = session.parameters()
    np.testing.assert_array_equal(found["w"][3:], WEIGHTS["w"][3:])
    np.testing.assert_allclose(found["w"][:3], part["w"], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found["b"], part["b"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_it_is_and_what_to_use(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"(?s)The optimizer optax.*{REFUSED[name]}"):
        trace_optimizer(MADE[name](), WEIGHTS)


def test_sam_in_one_step_is_refused_and_by_turns_is_not() -> None:
    ascent = optax.chain(contrib.normalize(), optax.sgd(0.05))
    with pytest.raises(
        UnsupportedError, match=r"opaque_mode=True takes gradients at several weights.*Leave opaque_mode out"
    ):
        trace_optimizer(contrib.sam(optax.sgd(0.1), ascent, opaque_mode=True), WEIGHTS)
    assert trace_optimizer(contrib.sam(optax.sgd(0.1), ascent), WEIGHTS).slots


def test_private_gradients_are_refused_where_their_shapes_would_do() -> None:
    """Weights whose first axes agree pass for gradients of rows."""
    with pytest.raises(UnsupportedError, match="each row of the batch"):
        trace_optimizer(
            contrib.dpsgd(0.1, 1.0, 0.1, 0), {"w": np.ones((3, 3), np.float32), "b": np.ones(3, np.float32)}
        )


def build(optimizer: Any) -> Any:
    model = jax_frontend.Model(apply, WEIGHTS, [jax.ShapeDtypeStruct((1, 6), jnp.float32)])
    return converter.build(model, loss=rows, optimizer=optimizer, update="full", batch=5, check=False)


@pytest.mark.parametrize(
    ("optimizer", "climbs"),
    [
        (optax.masked(optax.sgd(0.1), {"w": True, "b": False}), ["b"]),
        (optax.masked(optax.adam(0.1), {"w": False, "b": True}), ["w"]),
        (optax.chain(optax.clip(1.0), optax.masked(optax.sgd(0.1), {"w": True, "b": False})), ["b"]),
        (optax.masked(optax.sgd(0.1), lambda tree: jax.tree.map(lambda p: p.ndim > 1, tree)), ["b"]),
        (optax.masked(optax.contrib.momo(0.1), {"w": True, "b": False}), ["b"]),
        (optax.masked(optax.noisy_sgd(0.1, eta=9.0, key=0), {"w": False, "b": True}), ["w"]),
        (optax.chain(optax.masked(optax.add_decayed_weights(0.1), {"w": True, "b": False}), optax.sgd(0.1)), []),
        (optax.multi_transform({1: optax.sgd(0.1), 0: optax.set_to_zero()}, {"w": 1, "b": 0}), []),
        (optax.adamw(0.1, mask={"w": True, "b": False}), []),
        (optax.sgd(0.1), []),
    ],
)  # fmt: skip
def test_weights_that_go_up_their_gradient_are_named(optimizer: Any, climbs: list[str]) -> None:
    said = [note for note in build(optimizer).notes if "goes up the gradient" in note.why]
    assert [note.subject for note in said] == climbs
    assert all("multi_transform" in note.why and "set_to_zero" in note.why for note in said)


def test_between_which_steps_sam_has_climbed() -> None:
    """What the note says of every third step is so: in between the loss is higher."""
    ascent = optax.chain(contrib.normalize(), optax.sgd(0.3))
    program = build(contrib.sam(optax.sgd(0.05), ascent, sync_period=3))
    (note,) = [note for note in program.notes if "climbed" in note.why]
    assert note.why.startswith("of 3 calls of train the last one descends")
    with converter.runtime.TrainingSession(program.data) as session:
        first, once, twice, down = (session.train(X, Y) for _ in range(4))
    assert first < once < twice
    assert down < first


def test_which_weights_schedule_free_gives() -> None:
    """The note's arithmetic is that of optax."""
    program = build(contrib.schedule_free_sgd(0.5, b1=0.8))
    (note,) = [note for note in program.notes if "schedule_free_eval_params" in note.why]
    assert "(weight - (1 - b1) z) / b1" in note.why
    tx = contrib.schedule_free_sgd(0.5, b1=0.8)
    params, state = WEIGHTS, tx.init(WEIGHTS)
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(4):
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            params = optax.apply_updates(params, updates)
            session.train(X, Y)
        weights, slots = session.parameters(), session.state()
    expected = contrib.schedule_free_eval_params(state, params)
    for name, array in expected.items():
        (z,) = [a for slot, a in slots.items() if slot.endswith(f"/z/{name}")]
        np.testing.assert_allclose((weights[name] - 0.2 * z.reshape(array.shape)) / 0.8, array, rtol=1e-4, atol=1e-5)
