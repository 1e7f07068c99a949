"""Classes at run time: added, renamed, forgotten and saved with their names; free ones are masked."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
from converter.program import class_names
from converter.runtime import Event, Started, TrainingSession
from converter.support.errors import NumericError, UsageError
from jax_frontend import Model
from tests.manifest import programs
from tests.runtime.session.class_nets import HIDDEN, INPUTS, LATER, NAMES, OWN, built, rows_of_classes, small_model


@pytest.mark.quick
@pytest.mark.parametrize("softmax", [False, True])
def test_a_step_is_that_of_the_known_classes_alone(softmax: bool) -> None:
    """A softmax over the classes that there are, by jax.grad; the free rows do not move."""
    x, y = rows_of_classes(4)
    with TrainingSession(built(small_model(softmax=softmax), optimizer="sgd").data) as session:
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
    x, _ = rows_of_classes()
    plain = converter.build(small_model(softmax=True), update="head", batch=4, check=False)
    with TrainingSession(plain.data) as before, TrainingSession(built(small_model(softmax=True)).data) as session:
        shares = session.infer(x)
        np.testing.assert_allclose(shares[:, :OWN], before.infer(x), atol=1e-6)
        assert not shares[:, OWN:].any()


def test_a_class_is_added_renamed_forgotten_and_saved_with_its_name(tmp_path: Path) -> None:
    x, y = rows_of_classes()
    program = built()
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


def test_names_are_those_of_a_state_that_is_put_back() -> None:
    x, y = rows_of_classes()
    with TrainingSession(built().data) as session:
        session.set_class_means(x, y)
        before = session.state()
        session.add_class("later", x[:3])
        assert "later" in session.classes()
        session.set_state(before)
        assert "later" not in session.classes()


def test_a_class_that_comes_while_names_are_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows_of_classes()
    begun, read = threading.Event(), class_names.read

    def slow(tensor: np.ndarray) -> list[str]:
        names = read(tensor)
        if not begun.is_set():
            begun.set()
            time.sleep(0.3)
        return names

    with TrainingSession(built().data) as session:
        monkeypatch.setattr(class_names, "read", slow)
        judging = threading.Thread(target=session.evaluate, args=(x, y))
        judging.start()
        assert begun.wait(10)
        session.add_class("five")
        judging.join()
        assert "five" in session.classes()


def test_numbers_of_rows_are_no_shares_of_classes() -> None:
    """As many rows as there are labels: what each is worth says nothing of a class that there is not."""

    def loss(scores: jax.Array, y: dict[str, jax.Array]) -> jax.Array:
        return -jax.nn.log_softmax(scores)[jnp.arange(scores.shape[0]), y["label"]] * y["worth"]

    of_rows = {"label": jax.ShapeDtypeStruct((1,), "int32"), "worth": jax.ShapeDtypeStruct((1,), "float32")}
    x, y = rows_of_classes(OWN + LATER)
    with TrainingSession(built(loss=loss, y=of_rows).data) as session:
        worth = np.full(len(x), 2, np.float32)
        parts = [session.evaluate(x[i : i + 1], {"label": y[i : i + 1], "worth": worth[:1]}) for i in range(len(x))]
        whole = session.evaluate(x, {"label": y, "worth": worth})
        assert whole["loss"] == pytest.approx(np.mean([part["loss"] for part in parts]), rel=1e-5)
        with pytest.raises(UsageError, match="label 5 is of no class yet"):
            session.evaluate(x, {"label": y * 0 + 5, "worth": worth})


def test_a_training_that_goes_back_keeps_its_classes() -> None:
    x, y = rows_of_classes()
    with TrainingSession(built().data) as session:

        def add(event: Event) -> None:
            if isinstance(event, Started):
                session.add_class("five")

        with pytest.raises(UsageError, match="may go back to an earlier epoch"):
            session.fit(x, y, patience=1, listener=add, progress=False)
        session.fit(x, y, epochs=1, listener=add, progress=False)
        session.rename_class("five", "cinq")
        assert "cinq" in session.classes()


def test_classes_from_nothing() -> None:
    """No class of the model's own: all are the user's, each from a few samples."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(INPUTS, HIDDEN)).astype(np.float32)
    params = {"w": np.zeros((HIDDEN, 1), np.float32), "b": np.zeros(1, np.float32)}

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["first"]) @ params["last"]["w"] + params["last"]["b"]

    model = Model(apply, {"first": weights, "last": params}, [jax.ShapeDtypeStruct((1, INPUTS), "float32")])
    x, y = rows_of_classes(40)
    with TrainingSession(built(model, classes="1+4", labels=["nothing"]).data) as session:
        session.set_class_means(np.zeros((3, INPUTS), np.float32), np.zeros(3, np.int32))
        for label, name in enumerate(NAMES):
            session.add_class(name, x[y == label][:5])
        assert session.evaluate(x, y + 1, metrics="accuracy")["accuracy"] > 0.8


def test_classes_do_not_change_where_a_step_has_destroyed_the_state() -> None:
    x, _ = rows_of_classes(4)
    with TrainingSession(built(optimizer="sgd").data) as session:
        far = np.full_like(x, 3e38)
        far[:, ::2] *= -1
        with pytest.raises(NumericError):
            session.train(far, np.zeros(4, np.int32), 0.01)
        for change in (
            partial(session.rename_class, "one", "uno"),
            partial(session.add_class, "later"),
            partial(session.infer, x),
        ):
            with pytest.raises(NumericError, match="restore"):
                change()
        session.reset()
        session.rename_class("one", "uno")
        assert np.isfinite(session.infer(x)).all()


@pytest.mark.parametrize("labels", [["one", "", "three", "four"], ["one", "two", "two", "four"]])
def test_labels_that_are_no_names_of_their_own_leave_no_room(labels: list[str]) -> None:
    """An empty name says that there is room for a class."""
    with pytest.raises(UsageError, match="a name of its own"):
        built(labels=labels)


def test_refusals() -> None:
    x, y = rows_of_classes()
    with TrainingSession(built().data) as session:
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
    unnamed = built(classes=None, labels=None)
    with TrainingSession(unnamed.data) as session:
        for change in (partial(session.rename_class, "0", "0"), partial(session.add_class, "five")):
            with pytest.raises(UsageError, match=r"names are not kept in this program's state: .*'4\+10'"):
                change()
    plain = converter.build(small_model(), update="head", batch=4, check=False)
    with TrainingSession(plain.data) as session, pytest.raises(UsageError, match="build with head='class_means'"):
        session.classes()
    with pytest.raises(UsageError, match="does not end in a dense layer with a bias"):
        built(programs._conv(), classes=None, labels=None)
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
            built(**options)


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
