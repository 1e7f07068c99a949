"""Steps that would leave NaN or infinity in the state: refused, and the state is that from before them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.driver.program import Program
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.runtime.export.export import export_inference
from converter.support.errors import NumericError
from tests.runtime.programs import BATCH, EXAMPLES, by_name, program

STATES = ("variables", "stateless", "split")
GOOD = np.abs(np.random.default_rng(0).standard_normal((4, 3))).astype(np.float32) + 0.1
#: Of the second row the dense layer gives 0.
BAD = np.where(np.arange(4)[:, None] == 1, 0, GOOD).astype(np.float32)
Y = np.ones((4, 2), np.float32)


def _roots(params: Any, x: Any) -> Any:
    return jnp.sqrt(jnp.maximum(x @ params["root"]["w"], 0.0)) @ params["head"]["w"]


def _logs(params: Any, x: Any) -> Any:
    return jnp.where(x > 0, jnp.log(jnp.abs(x @ params["root"]["w"])), 0.0) @ params["head"]["w"]


def _powers(params: Any, x: Any) -> Any:
    return ((x @ params["root"]["w"]) ** 2) ** 0.25 @ params["head"]["w"]


def _loops(params: Any, x: Any) -> Any:
    rows = (x @ params["root"]["w"])[None].repeat(20, 0)
    return jax.lax.scan(lambda c, r: (c + jnp.sqrt(jnp.abs(r)), None), jnp.zeros((x.shape[0], 3)), rows)[0][:, :2]


MODELS: dict[str, tuple[Callable[..., Any], str]] = {
    "roots": (_roots, "Sqrt"),
    "logs": (_logs, "Log"),
    "powers": (_powers, "Pow"),
    "loops": (_loops, "Sqrt"),
}


@cache
def built(name: str = "roots", state: str = "variables", **options: Any) -> Program:
    ones = {"root": {"w": np.ones((3, 3), np.float32)}, "head": {"w": np.full((3, 2), 0.5, np.float32)}}
    params = {"root": ones["root"]} if name == "loops" else ones
    model = jax_frontend.Model(MODELS[name][0], params, inputs=[jax.ShapeDtypeStruct((1, 3), jnp.float32)])
    options.setdefault("batch", 4)
    options.setdefault("optimizer", optax.adam(0.01))
    return converter.build(model, "mse", state=state, check=False, **options)


def assert_refused(session: TrainingSession, operation: str) -> None:
    """One good step, a bad one that changes nothing, and what the good one is again."""
    assert np.isfinite(session.train(GOOD, Y))
    before = session.state()
    loss = session.evaluate(BAD, Y)["loss"]
    assert np.isfinite(loss)
    with pytest.raises(NumericError, match=rf"{operation} \(.*test_refused_steps.py:\d+\)") as refused:
        session.train(BAD, Y)
    said = str(refused.value)
    assert "learning rate" not in said or said.index(operation) < said.index("learning rate")
    assert all(np.array_equal(before[name], array) for name, array in session.state().items())
    assert session.evaluate(BAD, Y)["loss"] == pytest.approx(loss)
    assert np.isfinite(session.train(GOOD, Y))


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_root_of_0_behind_a_finite_loss(state: str, micro_batch: int | None) -> None:
    with TrainingSession(built(state=state, micro_batch=micro_batch).data) as session:
        assert_refused(session, "Sqrt")


@pytest.mark.parametrize("name", ["logs", "powers", "loops"])
def test_other_operations_are_named(name: str) -> None:
    with TrainingSession(built(name).data) as session:
        assert_refused(session, MODELS[name][1])


def test_a_session_with_a_weight_cache_keeps_the_state_too(tmp_path: Path) -> None:
    with TrainingSession(built().data, weight_cache=tmp_path) as session:
        assert_refused(session, "Sqrt")


def test_fit_ends_at_the_step_and_keeps_the_ones_before() -> None:
    with TrainingSession(built().data) as session, TrainingSession(built().data) as other:
        rows = np.concatenate([GOOD, BAD])
        with pytest.raises(NumericError, match="Sqrt"):
            session.fit(rows, np.concatenate([Y, Y]), epochs=1, shuffle=False, progress=False)
        other.train(GOOD, Y)
        assert all(np.array_equal(other.state()[name], array) for name, array in session.state().items())


def test_the_step_on_features_is_watched() -> None:
    def frozen_first(params: Any, x: Any) -> Any:
        return _roots(params, jnp.tanh(x @ params["first"]["w"]) + 1)

    weights = {name: {"w": np.ones((3, 3), np.float32)} for name in ("first", "root")}
    params = {**weights, "head": {"w": np.full((3, 2), 0.5, np.float32)}}
    model = jax_frontend.Model(frozen_first, params, inputs=[jax.ShapeDtypeStruct((1, 3), jnp.float32)])
    options = {"update": {"*": 1, "first/*": 0}, "signatures": ("train", "features"), "batch": 4, "check": False}
    program = converter.build(model, "mse", **options)
    with TrainingSession(program.data) as session:
        session.fit(GOOD, Y, epochs=1, progress=False)
        before = session.state()
        with pytest.raises(NumericError, match="Sqrt"):  # where tanh gives -1, the features are 0
            session.fit(GOOD * 0 - 100, Y, epochs=1, progress=False)
        assert all(np.array_equal(before[name], array) for name, array in session.state().items())


def test_nothing_is_added_where_nothing_can_be_infinite() -> None:
    for name in EXAMPLES:
        for optimizer in ("sgd", "adam"):
            manifest = program(name, optimizer=optimizer).manifest
            assert manifest.poles == ()
            assert not manifest.signatures["train"].giving("finite")
    for state in ("stateless", "split"):  # whoever passes the state looks at it
        manifest = built(state=state).manifest
        assert manifest.poles
        assert not any(signature.giving("finite") for signature in manifest.signatures.values())


@pytest.mark.parametrize(
    ("optimizer", "is_one"),
    [
        (optax.adam(0.1), False),
        (optax.adamw(optax.cosine_decay_schedule(0.1, 10)), False),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)), False),
        (optax.rmsprop(0.1), False),
        (optax.adadelta(0.1), False),
        (optax.lamb(0.1), False),
        (optax.adam(0.1, eps=0.0), True),
        (optax.rmsprop(0.1, eps=0.0), True),
    ],
)
def test_poles_of_optimizers(optimizer: optax.GradientTransformation, is_one: bool) -> None:
    model = EXAMPLES["mlp"].model()
    manifest = converter.build(model, "mse", batch=2, optimizer=optimizer, check=False).manifest
    assert bool(manifest.poles) == is_one


@pytest.mark.parametrize("state", STATES)
def test_a_rate_out_of_all_proportion(state: str, tmp_path: Path) -> None:
    """Nothing of it is infinite at finite numbers: weights leave float32's range, of the loss nothing is seen."""
    example = EXAMPLES["mlp"]
    x, y = example.data(BATCH)
    path = tmp_path / "mine.state"
    with TrainingSession(program("mlp", state).data) as session:
        session.train(x, y)
        session.save(path)
        good, saved = session.state(), path.read_bytes()
        with pytest.raises(NumericError, match="learning rate"):
            session.train(x * 1e10, y, learning_rate=1e35)
        assert all(np.array_equal(array, good[name]) for name, array in session.state().items())
        with pytest.raises(NumericError, match="learning rate"):
            session.fit(np.tile(x, (20, 1)), np.tile(y, 20), learning_rate=1e30, progress=False)
        assert all(np.isfinite(array).all() for array in session.state().values())
        assert path.read_bytes() == saved
        session.restore(path)
        assert all(np.array_equal(array, good[name]) for name, array in session.state().items())


def test_a_state_that_could_not_be_kept_is_not_used(tmp_path: Path) -> None:
    """Of variables no copy is made where neither program nor rate gives reason to."""
    example = EXAMPLES["mlp"]
    x, y = example.data(BATCH)
    path = tmp_path / "mine.state"
    with TrainingSession(program("mlp").data) as session:
        session.save(path)
        saved = path.read_bytes()
        with pytest.raises(NumericError, match="restore"):
            session.train(x * 1e38, y)
        for refused in (
            lambda: session.save(path),
            lambda: session.train(x, y),
            lambda: session.infer(x),
            lambda: session.evaluate(x, y),
        ):
            with pytest.raises(NumericError, match="reset"):
                refused()
        assert path.read_bytes() == saved
        assert [p.name for p in tmp_path.iterdir()] == ["mine.state"]
        session.restore(path)
        assert np.isfinite(session.train(x, y))
        session.reset()
        for name, array in by_name(example.params).items():
            np.testing.assert_array_equal(session.parameters()[name], array)


@pytest.mark.parametrize("state", STATES)
def test_slots_that_begin_infinite_may_stay_so(state: str) -> None:
    """The least loss so far, of which none was seen for three steps."""
    best = optax.contrib.reduce_on_plateau(accumulation_size=4)
    with TrainingSession(built(state=state, optimizer=optax.chain(optax.sgd(0.01), best)).data) as session:
        session.train(GOOD, Y)
        assert any(np.isinf(array).any() for array in session.state().values())
        with pytest.raises(NumericError, match="Sqrt"):
            session.train(BAD, Y)
        session.fit(GOOD, Y, epochs=2, progress=False)


@pytest.mark.quick
@pytest.mark.parametrize("target", ["litert-2", "gpu", "web", "hexagon", "tflm"])
def test_targets_train_beside_what_is_cut_off(target: str) -> None:
    """Rows below 0 are cut off by selecting in front of a root: as JAX has it, on every target."""

    def cut(params: Any, x: Any) -> Any:
        return jnp.sqrt(jax.nn.relu(x @ params["root"]["w"])) @ params["head"]["w"]

    params = {"root": {"w": np.ones((3, 3), np.float32)}, "head": {"w": np.full((3, 2), 0.5, np.float32)}}
    model = jax_frontend.Model(cut, params, inputs=[jax.ShapeDtypeStruct((1, 3), jnp.float32)])
    program = converter.build(model, "mse", batch=4, target=target, optimizer=optax.sgd(0.1), check=False)
    rows = np.where(np.arange(4)[:, None] == 2, -GOOD, GOOD).astype(np.float32)
    slope = jax.grad(lambda p: jnp.mean((cut(p, rows) - Y) ** 2))(params)
    with TrainingSession(program.data) as session:
        session.train(rows, Y, learning_rate=0.1)
        for name, array in session.parameters().items():
            group, _, leaf = name.partition("/")
            wanted = params[group][leaf] - 0.1 * np.asarray(slope[group][leaf])
            np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("state", STATES)
def test_rows_that_fill_a_batch_up_are_none(state: str) -> None:
    """What lacks to a batch has weight 0, and no slope of its own."""
    with TrainingSession(built(state=state).data) as whole, TrainingSession(built(state=state).data) as short:
        twice = np.concatenate([GOOD[:2], GOOD[:2]])
        assert short.train(GOOD[:2], Y[:2]) == pytest.approx(whole.train(twice, Y), rel=1e-5)
        for name, array in short.parameters().items():
            np.testing.assert_allclose(array, whole.parameters()[name], rtol=1e-3)


def test_a_file_of_others_trains_beside_what_is_cut_off(tmp_path: Path) -> None:
    """The operators of a `.tflite` do not say what they were; the operation is named by its place in the file."""

    def cut(params: Any, x: Any) -> Any:
        return jnp.sqrt(jax.nn.relu(x @ params["root"])) @ params["head"]

    params = {"root": np.ones((3, 3), np.float32), "head": np.full((3, 2), 0.5, np.float32)}
    model = jax_frontend.Model(cut, params, inputs=[jax.ShapeDtypeStruct((1, 3), jnp.float32)])
    options = {"optimizer": optax.sgd(0.1), "check": False}
    converter.build(model, "mse", batch=1, **options).write(tmp_path / "own.tflite")
    export_inference(read_program(tmp_path / "own.tflite"), tmp_path / "plain.tflite")
    program = converter.build(tmp_path / "plain.tflite", "mse", batch=4, update="full", **options)
    assert program.manifest.poles == ("Sqrt (root at plain.tflite:2)",)
    rows = np.where(np.arange(4)[:, None] == 2, -GOOD, GOOD).astype(np.float32)
    slope = jax.grad(lambda p: jnp.mean((cut(p, rows) - Y) ** 2))(params)
    with TrainingSession(program.data) as session:
        session.train(rows, Y, learning_rate=0.1)
        for name, array in params.items():
            wanted = array - 0.1 * np.asarray(slope[name])
            np.testing.assert_allclose(session.parameters()[f"{name}/kernel"], wanted, rtol=1e-4)
