"""`fit` with `skip`: which rows come, and what they teach; the definition in JAX and optax is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
from converter.driver.program import Program
from converter.runtime import Evaluated, ReplayMemory, SkipLearned, Skipped, Started, Step, TrainingSession
from converter.runtime.data.order import order_of
from converter.support.errors import UsageError
from jax_frontend import Model
from tests.models.zoo import CASES
from tests.runtime.programs import BATCH, BUILT, EXAMPLES, OPTIMIZERS, by_name, program

import keras  # isort: skip  after converter, which chooses its backend

MLP = EXAMPLES["mlp"]
ROWS, EPOCHS, RATE, SEED = 43, 8, 0.1, 3
SKIP = SkipLearned(below=0.5, revisit=3)


def built(optimizer: str = "sgd", **options: Any) -> Program:
    return converter.build(MLP.model(), optimizer=BUILT[optimizer], batch=BATCH, row_losses="on", **options)


def spied(session: TrainingSession, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What rows each step is given."""
    taken: list[np.ndarray] = []
    step = session._step

    def spy(examples: Any, *rest: Any, **named: Any) -> Any:
        taken.append(examples.arrays["x"])
        return step(examples, *rest, **named)

    monkeypatch.setattr(session, "_step", spy)
    return taken


class Definition:
    """Selective backpropagation as it is defined, in JAX and optax."""

    def __init__(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, optimizer: str) -> None:
        self.came: list[np.ndarray] = []
        self.losses: list[float] = []
        self.left: list[int] = []
        self.numbers: list[int] = []
        rule, params = OPTIMIZERS[optimizer], jax.tree.map(jnp.asarray, MLP.params)
        slots, last = rule.init(params), np.full(len(x), np.inf)
        gradient = jax.jit(jax.value_and_grad(MLP.loss))
        for epoch in range(EPOCHS):
            order = order_of(SEED, epoch, len(x))
            all_come = epoch % SKIP.revisit == 0 or epoch == EPOCHS - 1
            comes = np.array([all_come or last[row] >= SKIP.below for row in order], bool)
            rows, left = order[comes], order[~comes]
            total = sum(weight[left] * last[left])
            for number, start in enumerate(range(0, len(rows), BATCH)):
                batch = rows[start : start + BATCH]
                last[batch] = optax.softmax_cross_entropy_with_integer_labels(MLP.apply(params, x[batch]), y[batch])
                loss, gradients = gradient(params, x[batch], y[batch], weight[batch])
                updates, slots = rule.update(gradients, slots, params)
                params = jax.tree.map(lambda p, u: p + RATE * u, params, updates)
                total += float(loss) * weight[batch].sum()
                self.came.append(batch)
                self.numbers.append(epoch * -(-len(x) // BATCH) + number)
            self.losses.append(total / weight.sum())
            self.left.append(len(left))
        self.params = by_name(params)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {}),
        ("adam", {}),
        ("sgd", {"state": "stateless"}),
        ("sgd", {"micro_batch": 2}),
        ("adam", {"state": "split", "micro_batch": 4}),
        ("sgd", {"row_clipping": 1e6}),
        ("sgd", {"blocks": "on"}),
    ],
)
def test_rows_and_weights_are_those_of_the_definition(
    optimizer: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, y), weight = MLP.data(ROWS), np.linspace(0.5, 2, ROWS).astype(np.float32)
    expected = Definition(x, y, weight, optimizer)
    assert len(set(expected.left)) > 2, "a case in which rows are skipped, not always as many"
    events: list[Any] = []
    with TrainingSession(built(optimizer, **options).data) as session:
        taken = spied(session, monkeypatch)
        history = session.fit(
            x, y, EPOCHS, RATE, seed=SEED, weight=weight, skip=SKIP, listener=events.append, progress=False
        )
        found = session.parameters()
    assert len(taken) == len(expected.came) > 20
    for rows, place in zip(taken, expected.came, strict=True):
        np.testing.assert_array_equal(rows, x[place])
    assert history["skipped"] == expected.left
    assert [(e.epoch, e.rows, e.of) for e in events if isinstance(e, Skipped)] == [
        (epoch, rows, ROWS) for epoch, rows in enumerate(expected.left) if rows
    ]
    assert [event.step for event in events if isinstance(event, Step)] == expected.numbers
    assert events[0] == Started(EPOCHS, EPOCHS * -(-ROWS // BATCH))
    np.testing.assert_allclose(history["loss"], expected.losses, rtol=1e-5, atol=1e-5)
    for name, array in expected.params.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


def test_kept_features_skip_the_same_rows() -> None:
    x, y = CASES["lenet"].batch(30, 0)
    given, states = [], []
    for signatures in (("train", "evaluate", "features"), ("train", "evaluate")):
        made = converter.build(
            CASES["lenet"].model(), update="head", batch=4, signatures=signatures, row_losses="on", optimizer="sgd"
        )
        with TrainingSession(made.data) as session:
            history = session.fit(x, y, 6, 0.05, seed=1, skip=SkipLearned(2.0, 2), progress=False)
            given.append(history["skipped"])
            states.append(session.parameters())
    assert given[0] == given[1]
    assert 0 < max(given[0]) < 30
    for name, array in states[1].items():
        np.testing.assert_allclose(states[0][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_rates_go_by_the_step_of_a_whole_epoch() -> None:
    x, y = MLP.data(4 * BATCH)
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.1

    with TrainingSession(built().data) as session:
        history = session.fit(x, y, 4, rate, skip=SkipLearned(1e6, 3), progress=False)
        assert asked == [*range(4), *range(12, 16)], "epochs in which no row comes have no step"
        assert history["skipped"] == [0, 32, 32, 0]
        assert history["loss"][0] == pytest.approx(history["loss"][1], rel=1e-6), "of rows left out the last known"
        more = session.fit(x, y, 4, 0.1, skip=SkipLearned(1e6, 3), progress=False, patience=1)
    # The first sum is of batches, those behind it are of rows: a last bit may count as a fall.
    assert len(more["loss"]) in (2, 3), "epochs of which no row comes are none in which the loss falls"


def test_a_training_that_was_stopped_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    x, y = MLP.data(ROWS)
    with TrainingSession(built("adam").data) as session:
        session.fit(x, y, EPOCHS, RATE, seed=SEED, skip=SKIP, progress=False)
        whole = session.state()
    with TrainingSession(built("adam").data) as session:

        def stop(event: Any) -> bool:
            return not (isinstance(event, Evaluated) and event.epoch == 2)

        session.fit(x, y, EPOCHS, RATE, seed=SEED, skip=SKIP, progress=False, listener=stop)
        session.save(tmp_path / "state")
    with TrainingSession(built("adam").data) as session:
        session.restore(tmp_path / "state")
        session.fit(x, y, EPOCHS, RATE, seed=SEED, skip=SKIP, progress=False, initial_epoch=3)
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, whole[name])
        with pytest.raises(UsageError, match="continue with one in which all rows come, a multiple of 3"):
            session.fit(x, y, EPOCHS, RATE, seed=SEED, skip=SKIP, progress=False, initial_epoch=4)


def test_replayed_rows_are_skipped_as_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = MLP.data(60)
    with TrainingSession(built().data) as session:
        memory = ReplayMemory(tmp_path / "m", session.manifest, held_out=0)
        session.remember(memory, x[:20], y[:20])
        taken = spied(session, monkeypatch)
        skip = SkipLearned(1e6, 2)
        history = session.fit(x[20:], y[20:], 3, RATE, memory=memory, replay=0.5, skip=skip, progress=False)
    assert sum(map(len, taken)) == 160, "the second epoch draws rows that have come"
    assert history["skipped"] == [0, 80, 0]


def test_a_program_with_row_losses_trains_as_one_without(tmp_path: Path) -> None:
    x, y = MLP.data(ROWS)
    plain, states = program("mlp", optimizer="adam"), []
    for data in (plain.data, built("adam").data):
        with TrainingSession(data) as session:
            session.fit(x, y, 2, RATE, seed=0, progress=False)
            states.append(session.state())
            session.save(tmp_path / f"{len(states)}")
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array)
    with TrainingSession(plain.data) as session:
        session.restore(tmp_path / "2")


def test_the_loss_of_each_row_has_no_weight_and_no_regularizer() -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    kind = keras.layers.Dense(3, name="kind", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    model = keras.Model(inputs, [kind, keras.layers.Dense(2, name="size")(inputs)])
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    made = converter.build(
        model, loss=losses, loss_weights={"kind": 2.0, "size": 0.5}, optimizer="sgd", batch=4, row_losses="on"
    )
    rng = np.random.default_rng(0)
    x, kinds, sizes = rng.normal(size=(3, 6)), np.array([0, 2, 1]), rng.normal(size=(3, 2))
    scores, found = model.predict(x, verbose=0)
    rows = 2 * optax.softmax_cross_entropy_with_integer_labels(scores, kinds) + ((found - sizes) ** 2).mean(1) / 2
    weight = np.array([1, 0.5, 2], np.float32)
    penalty = 0.1 * float((np.asarray(model.get_layer("kind").kernel) ** 2).sum())
    with TrainingSession(made.data) as session:
        rows_of_step = session._examples("train", x.astype(np.float32), {"kind": kinds, "size": sizes}, weight)
        taken = session._step(rows_of_step, 0.0, "train")
    np.testing.assert_allclose(taken.rows, rows, rtol=1e-5)
    assert taken.loss == pytest.approx(float((rows * weight).sum() / weight.sum()) + penalty, rel=1e-5)


def test_the_loss_of_each_row_has_the_divergence_from_the_base() -> None:
    x, y = MLP.data(BATCH)
    with TrainingSession(built(keep_base=0.5).data) as session:
        session.train(x, y, 0.5)
        moved = session.parameters()
        taken = session._step(session._examples("train", x, y, None), 0.0, "train")
    params = {"layers": [{part: moved[f"layers/{i}/{part}"] for part in ("w", "b")} for i in (0, 1)]}
    base, now = (jax.nn.log_softmax(MLP.apply(p, x)) for p in (MLP.params, params))
    rows = optax.softmax_cross_entropy_with_integer_labels(now, y) + 0.5 * (jnp.exp(base) * (base - now)).sum(1)
    np.testing.assert_allclose(taken.rows, rows, rtol=1e-4, atol=1e-6)


def test_the_loss_of_an_epoch_has_the_regularizers_of_rows_that_do_not_come() -> None:
    """At rate 0 each epoch's loss is Keras' own of all rows, however many come; so nothing seems to fall."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(0.3))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.2))(hidden))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, size)).astype(np.float32) for size in (6, 2))
    expected = float(model.evaluate(x, y, batch_size=8, verbose=0))
    made = converter.build(model, optimizer="sgd", batch=8, row_losses="on", check=False)
    rows = ((model.predict(x, verbose=0) - y) ** 2).mean(1)
    with TrainingSession(made.data) as session:
        history = session.fit(x, y, 4, 0.0, seed=0, skip=SkipLearned(float(np.median(rows)), 3), progress=False)
    assert history["skipped"] == [0, 4, 4, 0]
    assert expected > rows.mean() + 0.1
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)


def test_losses_of_no_row_are_refused() -> None:
    x = jax.ShapeDtypeStruct((1, 6), jnp.float32)
    summed = keras.losses.MeanSquaredError(reduction="sum")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    with pytest.raises(UsageError, match="is the sum of its rows, so no row has a loss of its own"):
        converter.build(model, loss=summed, optimizer="sgd", row_losses="on")
    mixing = Model(lambda params, x: (x - x.mean(0)) @ params["w"], {"w": np.ones((6, 2), np.float32)}, inputs=[x])
    with pytest.raises(UsageError, match="rows of a batch influence each other"):
        converter.build(mixing, loss="mse", optimizer="sgd", row_losses="on")


def test_a_microcontroller_skips_no_rows() -> None:
    with pytest.raises(UsageError, match="is for sessions that skip rows, and on tflm none does: leave it out"):
        built(target="tflm")


def test_a_mean_over_the_places_of_all_rows_is_refused() -> None:
    model = keras.Sequential([keras.Input((5, 3)), keras.layers.Masking(), keras.layers.Dense(2)])
    with pytest.raises(UsageError, match="is a mean over the places that count in all rows"):
        converter.build(model, loss="mse", optimizer="sgd", row_losses="on")


@pytest.mark.parametrize(
    ("skip", "said"),
    [
        (0.1, r"skip is a SkipLearned\(below=0.03\), not float"),
        (SkipLearned(0.1), "build it with row_losses='on', on the command line --row-losses on"),
    ],
)
def test_what_cannot_skip(skip: Any, said: str) -> None:
    x, y = MLP.data(4)
    with TrainingSession(program().data) as session, pytest.raises(UsageError, match=said):
        session.fit(x, y, skip=skip, progress=False)


def test_a_stream_cannot_skip() -> None:
    with TrainingSession(built().data) as session, pytest.raises(UsageError, match="pass the arrays"):
        session.fit([MLP.data(4)], skip=SKIP, progress=False)


@pytest.mark.parametrize(
    ("below", "revisit", "said"),
    [
        (0, 4, "below is a loss above 0"),
        (float("nan"), 4, "below is a loss above 0"),
        (1e-60, 4, "below is a loss above 0 that float32 holds"),
        (1e300, 4, "below is a loss above 0 that float32 holds"),
        ("0.1", 4, "below is a loss above 0"),
        (0.1, 1, "revisit is a whole number from 2 on"),
        (0.1, 2.5, "revisit is a whole number from 2 on"),
    ],
)
def test_numbers_that_say_nothing(below: Any, revisit: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SkipLearned(below, revisit)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """As what is computed of losses and counts is, among all that a training takes."""
    x, y = MLP.data(4 * BATCH)
    histories, states = [], []
    for f, i in ((float, int), (np.float32, np.int64)):
        with TrainingSession(built().data) as session:
            memory = ReplayMemory(tmp_path / f.__name__, session.manifest, limit=i(99_999), held_out=f(0.25), seed=i(3))
            for _ in range(2):  # the second replays
                history = session.fit(
                    x,
                    y,
                    epochs=i(3),
                    learning_rate=f(0.125),
                    seed=i(1),
                    skip=SkipLearned(f(0.5), i(2)),
                    memory=memory,
                    replay=f(0.25),
                    roll_back=f(2),
                    progress=False,
                )
                histories.append(history["loss"])
            states.append(session.parameters())
    assert histories[:2] == histories[2:]
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array, name)
