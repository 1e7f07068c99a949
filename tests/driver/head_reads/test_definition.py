"""A last layer that reads blocks too: its definition in JAX, scikit-learn's discriminant of what it reads, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.training.schemes.pooling import _part
from tests.models.oracle import jax_model
from tests.training.schemes.by_hand import ADAM
from tests.training.schemes.test_lora import infer
from tests.training.schemes.test_skip import masked, of_shapes, one, pictures

BATCH, STEPS, RATE = 4, 20, 0.02
_ATTENTION = {"query": (6, 9), "key": (6, 9), "value": (6, 6)}
_TOKENS = {"embed": {"w": (5, 6)}, "layer0": _ATTENTION, "layer1": _ATTENTION, "out": {"w": (6, 3), "b": (3,)}}
#: Of each axis of 6, 5 or 3 in parts: where they begin, and how long they are. Of 5 in 2 the middle is in both.
_PARTS = {
    (6, 2): ((0, 3), 3),
    (5, 2): ((0, 2), 3),
    (3, 2): ((0, 1), 2),
    (6, 4): ((0, 1, 2, 3), 3),
    (3, 4): ((0, 1, 2), 1),
}


def in_parts(x: Any, parts: int) -> Any:
    """Return the means of parts of [rows, high, wide, channels], row by row of the picture."""
    if parts == 1:
        return x.mean((1, 2))
    (rows, high), (columns, wide) = (_PARTS[size, parts] for size in x.shape[1:3])
    means = [x[:, i : i + high, j : j + wide].mean((1, 2)) for i in rows for j in columns]
    return jnp.concatenate(means, axis=1)


def pictures_read(parts: int, last: int = 3) -> Callable[[Any], list[Any]]:
    """Return what gives the head's own input and what it reads of the last blocks of `pictures`, by Keras' layers."""
    names = ["stem", "block0_project", "block1_project"][-last:]
    of = keras.Model(pictures().input, [pictures().get_layer(name).output for name in ("pool", *names)])

    def reads(x: Any) -> list[Any]:
        own, *blocks = map(jnp.asarray, of(x))
        return [own, *(in_parts(block, parts) for block in blocks)]

    return reads


def tokens_read(net: Any) -> Callable[[Any], list[Any]]:
    """Return the same of `token_net`."""
    params = of_shapes(net, (7, 5), **_TOKENS).params

    def reads(x: Any) -> list[Any]:
        found = net(params, x)[1]
        return [found["out/w"], found["layer0/query"], found["layer1/query"]]

    return reads


def series_net(params: Any, x: Any) -> Any:
    """Two layers over a series, and the mean of what they give: [rows, 5, 3] -> [rows, 2]."""
    hidden = jnp.tanh(x @ params["first"])
    return jnp.tanh(hidden @ params["second"]).mean(1) @ params["head"]["w"] + params["head"]["b"]


def series() -> jax_frontend.Model:
    rng = np.random.default_rng(1)
    shapes = {"first": (3, 4), "second": (4, 4), "head": {"w": (4, 3), "b": (3,)}}
    params = jax.tree_util.tree_map(
        lambda s: rng.normal(size=s).astype("f"), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )
    return jax_frontend.Model(series_net, params, [jax.ShapeDtypeStruct((1, 5, 3), "float32")])


def series_read(parts: int) -> Callable[[Any], list[Any]]:
    """Return the same of `series`, of which each layer is a block: the first reads x itself."""
    params = series().params

    def reads(x: Any) -> list[Any]:
        hidden = jnp.tanh(x @ params["first"])
        own = jnp.tanh(hidden @ params["second"]).mean(1)
        starts, length = _PARTS[5, parts] if parts > 1 else ((0,), 5)
        return [own, *(jnp.concatenate([v[:, s : s + length].mean(1) for s in starts], 1) for v in (x, hidden))]

    return reads


@dataclass(frozen=True)
class Case:
    """A model, its last layer, and what that reads with an option."""

    model: Callable[[], Any]
    reads: Callable[[], Callable[[Any], list[Any]]]
    row: tuple[int, ...]
    option: str
    head: tuple[str, str] = ("head/kernel", "head/bias")


CASES = {
    "means": Case(pictures, lambda: pictures_read(1), (6, 6, 3), "blocks"),
    "parts": Case(pictures, lambda: pictures_read(2), (6, 6, 3), "blocks/2"),
    "more parts than pixels": Case(pictures, lambda: pictures_read(4), (6, 6, 3), "blocks/4"),
    "last blocks": Case(pictures, lambda: pictures_read(2, 2), (6, 6, 3), "blocks:2/2"),
    "token": Case(
        lambda: of_shapes(one, (7, 5), **_TOKENS), lambda: tokens_read(one), (7, 5), "blocks", ("out/w", "out/b")
    ),
    "mask": Case(
        lambda: of_shapes(masked, (7, 5), **_TOKENS), lambda: tokens_read(masked), (7, 5), "blocks", ("out/w", "out/b")
    ),
    "series": Case(series, lambda: series_read(2), (5, 3), "blocks/2", ("head/w", "head/b")),
    "series in one": Case(series, lambda: series_read(1), (5, 3), "blocks", ("head/w", "head/b")),
}


@cache
def program(name: str, **options: Any) -> converter.Program:
    case = CASES[name]
    asked = {"optimizer": ADAM, "update": "head", "head": "class_means", "head_reads": case.option, **options}
    return converter.build(case.model(), batch=BATCH, check=False, **asked)


def data(name: str, seed: int, rows: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, *CASES[name].row)).astype("f"), (rng.permutation(rows) % 3).astype(np.int32)


@pytest.mark.parametrize("name", CASES)
def test_a_training_is_that_of_its_definition(name: str) -> None:
    """A dense layer of all that is read, whose weights for blocks begin at 0."""
    case = CASES[name]
    reads = case.reads()
    x = data(name, 99)[0]
    with TrainingSession(program(name).data) as session:
        before = {n: jnp.asarray(array) for n, array in session.parameters().items()}
        width = sum(read.shape[1] for read in reads(x))
        assert before.keys() == set(case.head)
        assert before[case.head[0]].shape == (width, 3)
        given = jax_model(case.model())
        np.testing.assert_allclose(session.infer(x), given.apply(given.params, x), atol=1e-6)

        def loss(trained: Any, x: Any, y: Any) -> Any:
            logits = jnp.concatenate(reads(x), 1) @ trained[case.head[0]] + trained[case.head[1]]
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        trained, slots = before, ADAM.init(before)
        for step in range(STEPS):
            x, y = data(name, step)
            ours = session.train(x, y, RATE)
            theirs, gradients = jax.value_and_grad(loss)(trained, x, y)
            updates, slots = ADAM.update(gradients, slots, trained)
            trained = {n: p + RATE * updates[n] for n, p in trained.items()}
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        for n, array in session.parameters().items():
            np.testing.assert_allclose(array, trained[n], rtol=0, atol=1e-5, err_msg=n)
    assert any(note.status == "reads blocks" for note in program(name).notes)


@pytest.mark.parametrize("name", ["parts", "mask", "series"])
def test_its_discriminant_is_that_of_what_it_reads(name: str) -> None:
    (x, y), others = data(name, 1, 30), data(name, 2, 12)[0]
    reads = CASES[name].reads()
    features, unseen = (np.concatenate(reads(rows), 1).astype(np.float64) for rows in (x, others))
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(features, y)
    with TrainingSession(program(name).data) as session:
        np.testing.assert_allclose(session.features(x), features, atol=1e-5)
        session.set_class_means(x, y, shrinkage="auto")
        found = session.infer(others)
        found = found if name == "parts" else softmax(found, axis=1)
        np.testing.assert_allclose(found, oracle.predict_proba(unseen), atol=2e-4)


def test_classes_may_come_later_and_the_plain_model_reads_blocks_too(tmp_path: Path) -> None:
    x, y = data("parts", 1, 30)
    with TrainingSession(program("parts", classes="3+2").data) as session:
        session.set_class_means(x, y)
        session.add_class("mine", x[:4] + 3)
        found = session.infer(x + 3)
        assert (found.argmax(1) == 3).mean() > 0.9
        plain = program("parts", classes="3+2").export_inference(tmp_path / "plain.tflite", session.state())
        np.testing.assert_allclose(infer(plain, x + 3), found, atol=1e-6)


def test_a_tflite_file_is_read_too_and_the_program_s_own_model_exported(tmp_path: Path) -> None:
    x, y = data("parts", 1, 30)
    file = converter.build(pictures(), update="head", batch=BATCH).export_inference(tmp_path / "file.tflite")
    made = converter.build(file, update="head", head="class_means", head_reads="blocks/2", batch=BATCH)
    assert any("no place for more inputs" in note.why for note in made.notes)
    with TrainingSession(made.data) as session, TrainingSession(program("parts").data) as of_keras:
        for each in (session, of_keras):
            each.set_class_means(x, y, shrinkage="auto")
        np.testing.assert_allclose(session.infer(x), of_keras.infer(x), atol=1e-4)
        plain = made.export_inference(tmp_path / "plain.tflite", session.state())
        np.testing.assert_allclose(infer(plain, x), session.infer(x), atol=2e-5)


def test_integers_are_kept_where_frozen_layers_are_of_them() -> None:
    x, y = data("parts", 1, 48)
    made = converter.build(
        pictures(), update="head", head="class_means", head_reads="blocks/2", batch=BATCH, frozen="int8", calibration=x
    )
    with TrainingSession(made.data) as session, TrainingSession(program("parts").data) as exact:
        for each in (session, exact):
            each.set_class_means(x, y, shrinkage=1.0)
        assert session.features(x).dtype == np.int8
        np.testing.assert_allclose(session.infer(x), exact.infer(x), atol=0.1)


@given(st.integers(1, 40), st.integers(1, 12))
def test_parts_are_alike_and_together_all_of_an_axis(size: int, parts: int) -> None:
    stride, length = _part(size, parts)
    covered = {place for part in range(min(parts, size)) for place in range(part * stride, part * stride + length)}
    assert covered == set(range(size))


def _volumes() -> keras.Model:
    x = keras.Input((4, 4, 4, 1))
    hidden = keras.layers.Dense(2, activation="relu", name="a")(x)
    hidden = keras.layers.Dense(2, activation="relu", name="b")(hidden)
    return keras.Model(x, keras.layers.Dense(3, name="head")(keras.layers.GlobalAveragePooling3D()(hidden)))


def _without_bias() -> keras.Model:
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(3, use_bias=False)(keras.layers.Dense(5, activation="relu")(x)))


def _only_a_head() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


@pytest.mark.parametrize(
    ("model", "option", "said"),
    [
        (pictures, "block", "head_reads='block': 'blocks', what each block reads"),
        (pictures, "blocks/0", "head_reads='blocks/0'"),
        (pictures, "blocks:0", "head_reads='blocks:0'"),
        (_volumes, "blocks/2", "parts are of pictures and series, and it has the shape"),
        (CASES["mask"].model, "blocks/2", "it is read in the mean of 7 positions, weighted as before the head"),
        (CASES["token"].model, "blocks/2", "it is read of position 0 of 7"),
        (_without_bias, "blocks", "does not end in a dense layer with a bias"),
        (_only_a_head, "blocks", "no block or layer with a kernel stands before the last one"),
    ],
    ids=["no-such-name", "no-part", "no-block", "volumes", "mask", "token", "no-bias", "one-layer"],
)
def test_refused(model: Callable[[], Any], option: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        converter.build(model(), batch=BATCH, update="head", head_reads=option)


def test_of_volumes_the_mean_of_all_positions_is_read() -> None:
    made = converter.build(_volumes(), batch=BATCH, update="head", head="class_means", head_reads="blocks")
    x = np.random.default_rng(0).normal(size=(BATCH, 4, 4, 4, 1)).astype("f")
    with TrainingSession(made.data) as session:
        assert session.features(x).shape == (BATCH, 2 + 1 + 2)
        np.testing.assert_allclose(session.features(x)[:, 2], x.mean((1, 2, 3, 4)), atol=1e-6)
