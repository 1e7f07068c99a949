"""Last layers of class means: NumPy's means, scikit-learn's nearest, and what becomes of the optimizer's slots."""

from __future__ import annotations

import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from converter.program.manifest import LOSS_OF_STEP
from converter.runtime import TrainingSession
from converter.runtime.session.class_means import means_of, sharpness_of
from converter.support.errors import UsageError
from examples.data.digits import load
from jax_frontend import Model
from tests.manifest import programs
from tests.runtime.session.class_nets import HIDDEN, INPUTS, LATER, OWN, built, passing, rows_of_classes, small_model


def test_means_are_those_of_numpy_and_classes_the_nearest_of_scikit_learn() -> None:
    x, y = rows_of_classes()
    others = rows_of_classes(64)[0] + 0.5
    for transposed in (False, True):
        with TrainingSession(built(small_model(transposed)).data) as session:
            session.set_class_means(x, y)
            features, kernel = session.features(x).astype(np.float64), session.parameters()["last/w"]
            means = np.stack([features[y == label].mean(0) for label in range(OWN)])
            rows = (kernel if transposed else kernel.T)[:OWN]
            sharpness = np.linalg.norm(rows[0]) / np.linalg.norm(means[0])
            np.testing.assert_allclose(rows / sharpness, means, atol=1e-5)
            logits = session.infer(others)[:, :OWN]
            distances = ((session.features(others)[:, None] - means[None]) ** 2).sum(2)
            between = logits - logits[:, :1] + sharpness / 2 * (distances - distances[:, :1])
            np.testing.assert_allclose(between, 0, atol=1e-3)
            nearest = NearestCentroid().fit(features, y)
            np.testing.assert_array_equal(session.infer(others).argmax(1), nearest.predict(session.features(others)))


def test_a_wide_layer_reads_its_features() -> None:
    """The product of 1,280 inputs differs from NumPy's by rounding, which is not another layer."""
    rng, y = np.random.default_rng(0), np.arange(40) % 10
    params = {
        "first": rng.normal(size=(3, 1280)).astype(np.float32),
        "last": {"w": rng.normal(size=(1280, 10)).astype(np.float32), "b": np.zeros(10, np.float32)},
    }

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["first"]).mean((1, 2)) @ params["last"]["w"] + params["last"]["b"]

    model = Model(apply, params, [jax.ShapeDtypeStruct((1, 3, 3, 3), "float32")])
    x = (rng.normal(size=(10, 3, 3, 3))[y] + 0.1 * rng.normal(size=(40, 3, 3, 3))).astype(np.float32)
    program = built(model, classes="10+1", labels=None, batch=32, target="litert-2/x86-64")
    with TrainingSession(program.data) as session:
        session.set_class_means(x, y)
        features = session.features(x)
        nearest = NearestCentroid().fit(features, y)
        np.testing.assert_array_equal(session.infer(x).argmax(1), nearest.predict(features))


def test_slots_of_a_class_begin_anew() -> None:
    x, y = rows_of_classes()
    with TrainingSession(built().data) as session:
        session.fit(x, y, epochs=2, learning_rate=0.01, progress=False)
        state = session.state()
        slots = [name for name in state if name.startswith("optimizer/") and name.endswith("last/b")]
        assert slots
        assert all(state[name][:OWN].any() for name in slots)
        session.set_class_means(x, y)
        assert not any(session.state()[name].any() for name in slots)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(0.01),
        optax.adafactor(0.01, min_dim_size_to_factor=2),
        optax.contrib.schedule_free_sgd(0.1),
        optax.chain(optax.adam(0.01), optax.contrib.reduce_on_plateau(patience=1, cooldown=2)),
    ],
    ids=["adam", "adafactor", "schedule-free", "plateau"],
)
def test_class_means_behind_a_training_are_an_exact_start(optimizer: Any) -> None:
    """Nothing of it is left, not what is of no class: Adam's count, means over a matrix, the best loss."""
    x, y = rows_of_classes()
    program = built(optimizer=optimizer, classes=None)
    with TrainingSession(program.data) as session, TrainingSession(program.data) as anew:
        session.fit(x, y, epochs=3, progress=False)
        for each in (session, anew):
            each.set_class_means(x, y)
        state, expected = session.state(), anew.state()
        for tensor in session.manifest.state_tensors:
            if tensor.tensor != LOSS_OF_STEP:  # a step begins by writing it
                np.testing.assert_array_equal(state[tensor.tensor], expected[tensor.tensor], err_msg=tensor.name)


def test_steps_behind_class_means_are_those_of_optax_from_the_start() -> None:
    x, y = rows_of_classes()
    with TrainingSession(built(classes=None).data) as session:
        session.fit(x, y, epochs=5, learning_rate=0.01, progress=False)
        session.set_class_means(x, y)
        features = jnp.asarray(session.features(x))
        weights = {name: session.parameters()[f"last/{name}"].copy() for name in ("w", "b")}
        tx = optax.adam(0.01)
        slots = tx.init(weights)

        def loss(weights: Any, rows: slice) -> jax.Array:
            logits = features[rows] @ weights["w"] + weights["b"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

        for start in range(0, 28, 4):
            rows = slice(start, start + 4)
            session.train(x[rows], y[rows], 0.01)
            updates, slots = tx.update(jax.grad(loss)(weights, rows), slots)
            weights = optax.apply_updates(weights, updates)
            for name, values in weights.items():
                np.testing.assert_allclose(session.parameters()[f"last/{name}"], values, atol=1e-4)


def test_features_that_are_no_numbers_have_no_mean() -> None:
    x, y = rows_of_classes()
    plain = small_model()
    model = Model(lambda params, x: plain.apply(params, jnp.log(x)), plain.params, plain.inputs)
    positive = np.abs(x) + 0.5
    with TrainingSession(built(model).data) as session:
        session.set_class_means(positive, y)
        before = session.state()
        for call in (lambda: session.add_class("later", x), lambda: session.set_class_means(x, y)):
            with pytest.raises(UsageError, match="NaN"):
                call()
        assert all(np.array_equal(array, before[name]) for name, array in session.state().items())


def test_slots_that_begin_elsewhere_begin_there_again() -> None:
    """Adagrad's begin at 0.1; FedProx's anchor is a copy of the weights, and so holds a forgotten class where it is."""
    x, y = rows_of_classes()
    with TrainingSession(built(optimizer=optax.adagrad(0.1)).data) as session:
        begun = session.state()
        session.fit(x, y, epochs=1, progress=False)
        session.set_class_means(x, y)
        slots = [
            one.tensor for one in session.manifest.state_tensors if one.slot and one.name.endswith(("last/w", "last/b"))
        ]
        assert len(slots) == 2
        for name in slots:
            np.testing.assert_array_equal(session.state()[name], begun[name])
    with TrainingSession(built(optimizer="sgd", proximal=0.5).data) as session:
        session.set_class_means(x, y)
        session.add_class("later", x[:3])
        session.forget_class("later")
        session.fit(x, y, epochs=20, progress=False)
        assert session.parameters()[session.manifest.head.bias][OWN] < -29_000


def test_large_features_name_no_free_class() -> None:
    """Features far from zero make biases of class means below -30,000: classes are still scikit-learn's nearest."""
    rng = np.random.default_rng(0)
    y = (np.arange(40) % OWN).astype(np.int32)
    centres = rng.normal(size=(OWN, INPUTS)) * 40 + 500
    x = (centres[y] + rng.normal(size=(40, INPUTS))).astype(np.float32)
    with TrainingSession(built(passing(1.0)).data) as session:
        session.set_class_means(x, y)
        bias = session.parameters()["last/b"]
        assert bias[:OWN].min() < -30_000
        others = np.concatenate([np.zeros((1, INPUTS), np.float32), -2 * x, x])
        nearest = NearestCentroid().fit(x, y).predict(others)
        np.testing.assert_array_equal(session.infer(others).argmax(1), nearest)
        label = session.add_class("far", 3 * x[:5])
        assert session.infer(others).argmax(1).max() <= label
        session.forget_class("far")
        assert session.infer(np.concatenate([others, 3 * x])).argmax(1).max() < OWN
        session.set_class_means(*rows_of_classes(40))
        assert set(session.parameters()["last/b"][OWN:]) == {np.float32(-30_000)}
        with pytest.raises(UsageError, match="Normalise the input of the last layer"):
            session.set_class_means(x + 1e5, y)


@pytest.mark.parametrize("room", [True, False])
def test_slots_that_copy_weights_which_were_built_as_zeros(room: bool) -> None:
    """Schedule-free's z is the point that moves: it begins at the weights, which the bias tells of the kernel's."""
    asked: dict[str, Any] = {} if room else {"classes": None}
    x, y = rows_of_classes()
    free = optax.contrib.schedule_free_sgd(0.1)
    with TrainingSession(built(passing(0.0 if room else 1.0), optimizer=free, **asked).data) as session:
        session.set_class_means(x, y)
        state = {one.name: session.state()[one.tensor] for one in session.manifest.state_tensors}
        assert state["last/w"].any()
        for name in ("last/w", "last/b"):
            np.testing.assert_array_equal(state[f"optimizer/z/{name}"], state[name])
    with TrainingSession(built(passing(0.0), **asked).data) as session:
        session.set_class_means(x, y)
        assert not any(a.any() for n, a in session.state().items() if n.startswith("optimizer/") and "count" not in n)
    if not room:
        with pytest.raises(UsageError, match="built as zeros, and the optimizer keeps copies"):
            built(passing(0.0), optimizer=free, **asked)


def test_the_sharpness_takes_no_memory_of_rows_by_classes_by_inputs() -> None:
    rows, classes, inputs = 600, 50, 200
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, inputs)), np.arange(rows) % classes
    tracemalloc.start()
    sharpness_of(x, y, means_of(x, y, classes))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 * rows * inputs * classes / 4


def test_integer_features_are_the_numbers_that_they_stand_for() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((24, 8, 8, 3), np.float32)
    conv = programs._conv()
    apply, params, inputs = conv.apply, [*conv.params, np.zeros(3, np.float32)], conv.inputs
    assert apply is not None
    model = Model(lambda p, x: apply(p[:3], x) + p[3], params, inputs)
    options = {"classes": None, "labels": None, "update": {"2": 1, "3": 1}, "frozen": "int8", "calibration": x}
    y = (np.arange(24) % 3).astype(np.int32)
    rows: list[np.ndarray] = []
    for asked in (options, {**options, "frozen": "float32", "calibration": None}):
        with TrainingSession(built(model, **asked).data) as session:
            session.set_class_means(x, y)
            kernel = session.parameters()["2"]
            rows.append(kernel / np.linalg.norm(kernel))
    np.testing.assert_allclose(rows[0], rows[1], atol=0.02)


def _digits_net(own: list[int]) -> tuple[Model, Any]:
    """A net of three dense layers that has learned some of the digits, by scikit-learn."""
    from sklearn.neural_network import MLPClassifier

    train, _ = load()
    known = np.isin(train.y, own)
    net = MLPClassifier((64, 64), random_state=0, max_iter=60).fit(train.x[known].reshape(-1, 64), train.y[known])
    params = [(w.astype(np.float32), b.astype(np.float32)) for w, b in zip(net.coefs_, net.intercepts_, strict=True)]

    def apply(params: Any, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        return x @ params[-1][0] + params[-1][1]

    return Model(apply, params, [jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")]), net


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_digit_from_five_samples_is_as_good_as_a_retrained_head() -> None:
    """Real digits: the net knows nine of them; the tenth comes with five samples and no gradient."""
    train, test = load()
    added, retrained, lost = [], [], []
    for new in (0, 4, 7):
        own = [digit for digit in range(10) if digit != new]
        label = np.full(10, 9)
        label[own] = range(9)
        known, unknown = np.flatnonzero(train.y != new), np.flatnonzero(train.y == new)
        is_own = test.y != new
        program = built(_digits_net(own)[0], classes="9+20", labels=[str(digit) for digit in own], batch=32)
        with TrainingSession(program.data) as session:
            for seed in range(3):
                five = np.random.default_rng(seed).choice(unknown, 5, replace=False)
                session.reset()
                session.set_class_means(train.x[known], label[train.y[known]])
                before = (session.infer(test.x[is_own]).argmax(1) == label[test.y[is_own]]).mean()
                session.add_class(str(new), train.x[five])
                right = session.infer(test.x).argmax(1) == label[test.y]
                rows = np.concatenate([known, five])
                features = session.features(train.x[rows])
                head = LogisticRegression(max_iter=300, class_weight="balanced")
                head.fit(features, label[train.y[rows]])
                best = head.predict(session.features(test.x)) == label[test.y]
                added.append(right.mean())
                retrained.append(best.mean())
                lost.append(before - right[is_own].mean())
    assert np.mean(added) > np.mean(retrained) - 0.03, (added, retrained)
    assert np.mean(lost) < 0.01, lost
    print(np.mean(added), np.mean(retrained), np.mean(lost))


def test_sharpness_says_left_out_rows_best() -> None:
    """By brute force: each row left out of its class' mean."""
    x, y = rows_of_classes(24)
    found = sharpness_of(x.astype(np.float64), y, means_of(x, y, OWN))

    def loss(sharpness: float) -> float:
        losses = []
        for row in range(len(x)):
            left = np.arange(len(x)) != row
            means = np.stack([x[left & (y == label)].mean(0) for label in range(OWN)])
            scores = -sharpness / 2 * ((x[row] - means) ** 2).sum(1)
            losses.append(logsumexp(scores) - scores[y[row]])
        return float(np.mean(losses))

    assert loss(found) <= min(loss(found / 2), loss(found * 2))


def test_slots_of_a_layer_whose_name_ends_alike_stay() -> None:
    """`tower/last/w` is of the shape of `last/w`, and no part of the last layer."""
    rng, width = np.random.default_rng(0), OWN + LATER

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    params = {
        "first": drawn(INPUTS, HIDDEN),
        "tower": {"last": {"w": drawn(HIDDEN, width), "b": drawn(width)}},
        "last": {"w": drawn(width, OWN), "b": drawn(OWN)},
    }

    def apply(params: Any, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ params["first"])
        hidden = jnp.tanh(hidden @ params["tower"]["last"]["w"] + params["tower"]["last"]["b"])
        return hidden @ params["last"]["w"] + params["last"]["b"]

    x, y = rows_of_classes()
    model = Model(apply, params, [jax.ShapeDtypeStruct((1, INPUTS), "float32")])
    with TrainingSession(built(model, update={"tower/*": 1, "last/*": 1}, head=None).data) as session:
        session.fit(x, y, epochs=2, learning_rate=0.01, progress=False)
        before = session.state()
        session.add_class("another")
        after = session.state()
    of_tower = [name for name in before if name.startswith("optimizer/") and "tower" in name]
    assert len(of_tower) == 4
    for name in of_tower:
        assert before[name].any()
        np.testing.assert_array_equal(after[name], before[name], name)
