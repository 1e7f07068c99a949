"""Classes at run time: means of samples in place of steps, room for classes that come later, and their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

import converter
from converter.program import class_names
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from examples.digits import load
from jax_frontend import Model
from tests.manifest import programs

INPUTS, HIDDEN, OWN, LATER = 7, 9, 4, 3
NAMES = ["one", "two", "three", "four"]


def _model(transposed: bool = False, softmax: bool = False, hidden: int = HIDDEN) -> Model:
    rng = np.random.default_rng(3)
    first, last, bias = (rng.normal(size=s).astype(np.float32) for s in ((INPUTS, hidden), (hidden, OWN), (OWN,)))

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        hidden, w = jax.nn.relu(x @ params["first"]), params["last"]["w"]
        logits = hidden @ (w.T if transposed else w) + params["last"]["b"]
        return jax.nn.softmax(logits) if softmax else logits

    params = {"first": first, "last": {"w": last.T.copy() if transposed else last, "b": bias}}
    return Model(apply, params, [jax.ShapeDtypeStruct((1, INPUTS), "float32")])


def _built(model: Model | None = None, **options: Any) -> converter.Program:
    asked = {"update": "head", "head": "class_means", "classes": f"{OWN}+{LATER}", "batch": 4, "labels": NAMES}
    return converter.build(model or _model(), **{**asked, "optimizer": "adam", "check": False, **options})


def _rows(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    y = (np.arange(count) % OWN).astype(np.int32)
    centres = rng.normal(size=(OWN, INPUTS)) * 2
    return (centres[y] + rng.normal(size=(count, INPUTS))).astype(np.float32), y


def test_means_are_those_of_numpy_and_classes_the_nearest_of_scikit_learn() -> None:
    x, y = _rows()
    others = _rows(64)[0] + 0.5
    for transposed in (False, True):
        with TrainingSession(_built(_model(transposed)).data) as session:
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


@pytest.mark.parametrize("softmax", [False, True])
def test_a_step_is_that_of_the_known_classes_alone(softmax: bool) -> None:
    """A softmax over the classes that there are, by jax.grad; the free rows do not move."""
    x, y = _rows(4)
    with TrainingSession(_built(_model(softmax=softmax), optimizer="sgd").data) as session:
        features, before = session.features(x), session.parameters()
        assert session.evaluate(x, y)["accuracy"] == np.mean(session.infer(x).argmax(1) == y)

        def loss(w: jax.Array, b: jax.Array) -> jax.Array:
            scores = jax.nn.log_softmax(features @ w + b)
            return -scores[jnp.arange(4), y].mean()

        w, b = (jnp.asarray(before[name][..., :OWN]) for name in ("last/w", "last/b"))
        value, slopes = jax.value_and_grad(loss, (0, 1))(w, b)
        assert session.train(x, y, learning_rate=0.5) == pytest.approx(float(value), abs=1e-5)
        for name, weight, slope in zip(("last/w", "last/b"), (w, b), slopes, strict=True):
            after = session.parameters()[name]
            np.testing.assert_allclose(after[..., :OWN], weight - 0.5 * slope, atol=1e-5)
            np.testing.assert_array_equal(after[..., OWN:], before[name][..., OWN:])


def test_the_models_own_classes_are_what_they_were() -> None:
    x, _ = _rows()
    plain = converter.build(_model(softmax=True), update="head", batch=4, check=False)
    with TrainingSession(plain.data) as before, TrainingSession(_built(_model(softmax=True)).data) as session:
        shares = session.infer(x)
        np.testing.assert_allclose(shares[:, :OWN], before.infer(x), atol=1e-6)
        assert not shares[:, OWN:].any()


def test_a_class_is_added_renamed_forgotten_and_saved_with_its_name(tmp_path: Path) -> None:
    x, y = _rows()
    program = _built()
    with TrainingSession(program.data) as session:
        assert session.classes() == [*NAMES, None, None, None]
        session.set_class_means(x, y)
        of_others = session.infer(x)[:, :OWN]
        new = np.tile(x[:1] * -2, (5, 1)) + np.random.default_rng(1).normal(size=(5, INPUTS)).astype(np.float32)
        assert session.add_class("Zwölf", new) == OWN
        assert session.infer(new).argmax(1).tolist() == [OWN] * 5
        np.testing.assert_array_equal(session.infer(x)[:, :OWN], of_others)
        session.rename_class("Zwölf", "十二")
        session.save(tmp_path / "mine.state")
        session.add_class("six")
        session.forget_class("十二")
        assert session.classes() == [*NAMES, None, "six", None]
        assert session.infer(new).argmax(1).max() != OWN
    with TrainingSession(program.data) as another:
        another.restore(tmp_path / "mine.state")
        assert another.classes() == [*NAMES, "十二", None, None]
        assert another.infer(new).argmax(1).tolist() == [OWN] * 5
        another.fit(new, np.full(5, OWN), epochs=2, learning_rate=0.01, progress=False)
        assert np.all(another.parameters()["last/b"][OWN + 1 :] < -1e4), "free classes stay masked"


def test_slots_of_a_class_begin_anew() -> None:
    x, y = _rows()
    with TrainingSession(_built().data) as session:
        session.fit(x, y, epochs=2, learning_rate=0.01, progress=False)
        state = session.state()
        slots = [name for name in state if name.startswith("optimizer/") and name.endswith("last/b")]
        assert slots
        assert all(state[name][:OWN].any() for name in slots)
        session.set_class_means(x, y)
        assert not any(session.state()[name].any() for name in slots)


def test_slots_that_begin_elsewhere_begin_there_again() -> None:
    """Adagrad's begin at 0.1; FedProx's anchor is a copy of the weights, and so holds a forgotten class where it is."""
    x, y = _rows()
    with TrainingSession(_built(optimizer=optax.adagrad(0.1)).data) as session:
        built = session.state()
        session.fit(x, y, epochs=1, progress=False)
        session.set_class_means(x, y)
        slots = [
            one.tensor for one in session.manifest.state_tensors if one.slot and one.name.endswith(("last/w", "last/b"))
        ]
        assert len(slots) == 2
        for name in slots:
            np.testing.assert_array_equal(session.state()[name], built[name])
    with TrainingSession(_built(optimizer="sgd", proximal=0.5).data) as session:
        session.set_class_means(x, y)
        session.add_class("later", x[:3])
        session.forget_class("later")
        session.fit(x, y, epochs=20, progress=False)
        assert session.parameters()[session.manifest.head.bias][OWN] < -29_000


def test_names_are_those_of_a_state_that_is_put_back() -> None:
    x, y = _rows()
    with TrainingSession(_built().data) as session:
        session.set_class_means(x, y)
        before = session.state()
        session.add_class("later", x[:3])
        assert "later" in session.classes()
        session.set_state(before)
        assert "later" not in session.classes()


def test_classes_from_nothing() -> None:
    """No class of the model's own: all are the user's, each from a few samples."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(INPUTS, HIDDEN)).astype(np.float32)
    params = {"w": np.zeros((HIDDEN, 1), np.float32), "b": np.zeros(1, np.float32)}

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["first"]) @ params["last"]["w"] + params["last"]["b"]

    model = Model(apply, {"first": weights, "last": params}, [jax.ShapeDtypeStruct((1, INPUTS), "float32")])
    x, y = _rows(40)
    with TrainingSession(_built(model, classes="1+4", labels=["nothing"]).data) as session:
        session.set_class_means(np.zeros((3, INPUTS), np.float32), np.zeros(3, np.int32))
        for label, name in enumerate(NAMES):
            session.add_class(name, x[y == label][:5])
        assert session.evaluate(x, y + 1, metrics="accuracy")["accuracy"] > 0.8


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
        with TrainingSession(_built(model, **asked).data) as session:
            session.set_class_means(x, y)
            kernel = session.parameters()["2"]
            rows.append(kernel / np.linalg.norm(kernel))
    np.testing.assert_allclose(rows[0], rows[1], atol=0.02)


def test_refusals() -> None:
    x, y = _rows()
    with TrainingSession(_built().data) as session:
        with pytest.raises(UsageError, match="does not hold class means"):
            session.add_class("five", x[:2])
        with pytest.raises(UsageError, match="no row is of class 3"):
            session.set_class_means(x[y < 3], y[y < 3])
        with pytest.raises(UsageError, match="labels of known classes"):
            session.set_class_means(x, y + 1)
        with pytest.raises(UsageError, match="label 5 is of no class yet"):
            session.train(x[:4], np.array([0, 1, 2, 5]))
        with pytest.raises(UsageError, match="already"):
            session.add_class("two")
        with pytest.raises(UsageError, match="60 bytes"):
            session.add_class("ö" * 31)
        with pytest.raises(UsageError, match="stays"):
            session.forget_class("two")
        with pytest.raises(UsageError, match="no class 'nine'"):
            session.rename_class("nine", "ten")
        for name in ("a", "b", "c"):
            session.add_class(name)
        with pytest.raises(UsageError, match="room for 7 classes, and all are there"):
            session.add_class("d")
    plain = converter.build(_model(), update="head", batch=4, check=False)
    with TrainingSession(plain.data) as session, pytest.raises(UsageError, match="build with head='class_means'"):
        session.classes()
    with pytest.raises(UsageError, match="does not end in a dense layer with a bias"):
        _built(programs._conv(), classes=None, labels=None)
    for options, why in (
        ({"update": "full"}, "no features to keep"),
        ({"classes": "3+2"}, "tells 4 classes apart"),
        ({"classes": "many"}, "'10\\+20'"),
        ({"classes": "4+0"}, "'10\\+20'"),
        ({"state": "stateless"}, "kept in variables"),
        ({"update": {"last/w": 0.5, "last/b": 1}}, "does not train whole"),
        ({"labels": [*NAMES, "five"]}, "labels names 5"),
    ):
        with pytest.raises(UsageError, match=why):
            _built(**options)


def test_names_of_a_state_of_anybody() -> None:
    names = ["", "a", "ö" * 30]
    assert class_names.read(class_names.written(names)) == names
    bad = class_names.written(names)
    for number in (-1, 61, 1 << 30):
        bad[0, 0] = number
        with pytest.raises(UsageError, match="damaged"):
            class_names.read(bad)
    with pytest.raises(UsageError, match="damaged"):
        class_names.read(np.array([[4, -1, *[0] * 14]], np.int32))


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
        program = _built(_digits_net(own)[0], classes="9+20", labels=[str(digit) for digit in own], batch=32)
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
    from converter.runtime.session.class_means import means_of, sharpness_of

    x, y = _rows(24)
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
