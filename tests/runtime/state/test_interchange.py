"""A user's state goes on in every build of the same model, and in no other one without a word."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter import Channels
from converter.driver.program import Program
from converter.program import class_names
from converter.program.file import read_program
from converter.program.manifest import StateTensor
from converter.runtime import StateWarning, TrainingSession
from converter.runtime.state.interchange import StateSpec, carried
from converter.runtime.state.state_file import ForeignState
from converter.support.errors import UsageError
from tests.runtime.state.test_state_file import packed_in_version_1

ROWS = 8
MODEL = """
import jax

def apply(params, x):
    hidden = jax.lax.conv_general_dilated(x, params["conv"]["kernel"], (1, 1), "SAME",
                                          dimension_numbers=("NHWC", "HWIO", "NHWC"))
    hidden = jax.nn.relu(hidden + params["conv"]["bias"]).mean((1, 2))
    hidden = jax.nn.tanh(hidden @ params["middle"]["kernel"])
    return hidden @ params["head"]["kernel"] + params["head"]["bias"]
"""


def weights(classes: int = 5, width: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    return {
        "conv": {"kernel": drawn(3, 3, 2, width), "bias": drawn(width)},
        "middle": {"kernel": drawn(width, width)},
        "head": {"kernel": drawn(width, classes), "bias": np.zeros(classes, np.float32)},
    }


def model(source: str = MODEL, file: str = "/home/one/model.py", params: Any = None) -> jax_frontend.Model:
    """The model of a source file, as if it lay there."""
    scope: dict[str, Any] = {}
    exec(compile(source, file, "exec"), scope)
    inputs = [jax.ShapeDtypeStruct((1, 6, 6, 2), jnp.float32)]
    return jax_frontend.Model(scope["apply"], weights() if params is None else params, inputs=inputs)


SCHEME = {"middle/*": 1, "head/*": 1}


@functools.cache
def built(**options: Any) -> Program:
    return _built(model(), **options)


def _built(of: jax_frontend.Model, **options: Any) -> Program:
    options = {"optimizer": "adam", "update": SCHEME, "batch": ROWS} | options
    if isinstance(options["update"], tuple):
        options["update"] = dict(options["update"])
    return converter.build(of, loss="sparse_categorical_crossentropy", **options)


def data(classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((ROWS, 6, 6, 2)).astype(np.float32), np.arange(ROWS, dtype=np.int32) % classes


def saved(program: Program, path: Path, steps: int = 3) -> TrainingSession:
    """A session that has trained and saved."""
    session = TrainingSession(program.data)
    for _ in range(steps):
        session.train(*data(), learning_rate=0.01)
    session.save(path)
    return session


def goes_on(first: TrainingSession, other: Program, path: Path, rows: int = ROWS) -> None:
    """The state is restored in another program, which has the weights of the first and trains on as it does."""
    x, y = data()
    with first, TrainingSession(other.data) as second, warnings.catch_warnings():
        warnings.simplefilter("error", StateWarning)
        restored = second.restore(path)
        assert (restored.left, restored.differences) == ((), ())
        for name, array in first.parameters().items():
            np.testing.assert_array_equal(second.parameters()[name], array)
        for _ in range(3):
            first.train(x[:rows], y[:rows], learning_rate=0.01)
            second.train(x[:rows], y[:rows], learning_rate=0.01)
        for name, array in first.parameters().items():
            np.testing.assert_allclose(second.parameters()[name], array, rtol=1e-6, atol=1e-6)
        assert second.save(path) == 2


MOVED = "\n" * 7 + "# a comment\n" + MODEL.replace("    hidden = jax.nn.tanh", "    # squash\n    hidden = jax.nn.tanh")


@pytest.mark.parametrize("file", ["/home/one/model.py", "/ci/build/other.py"])
def test_lines_and_folders_do_not_matter(file: str, tmp_path: Path) -> None:
    other = _built(model(MOVED, file))
    assert other.manifest.graph_hash != built().manifest.graph_hash  # it holds the lines
    goes_on(saved(built(), tmp_path / "s"), other, tmp_path / "s")


@pytest.mark.parametrize(
    "options",
    [
        {"target": "gpu"},
        {"target": "tflite-2.16"},
        {"target": "web"},
        {"state": "stateless"},
        {"state": "split"},
        {"batch": 1},
        {"batch": 2},
        {"batch": 64},
        {"micro_batch": 2},
        {"micro_batch": 1, "state": "split"},
        {"signatures": ("train", "features", "infer", "infer_1")},
        {"optimizer": optax.adam(3e-3)},
        {"optimizer": optax.adam(0.5, b1=0.9)},
        {"memory_budget": "200MiB"},
    ],
    ids=lambda options: "+".join(options),
)
def test_forms_targets_and_batches_do_not_matter(options: dict[str, Any], tmp_path: Path) -> None:
    goes_on(
        saved(built(), tmp_path / "s"), built(**options), tmp_path / "s", rows=min(options.get("batch", ROWS), ROWS)
    )


def transposed(program: Program) -> set[str]:
    """The weights that are stored the other way round than the model has them."""
    return {t.name for t in program.manifest.state_tensors if t.model and ["transpose", [1, 0]] in list(t.model.view)}


def test_a_matrix_that_is_stored_the_other_way_round_is_turned(tmp_path: Path) -> None:
    """A square one, which no shape betrays, and the slots of the optimizer with it."""
    params = weights(width=256)
    programs = [_built(model(params=params), batch=ROWS, target=target) for target in ("litert-2", "gpu")]
    assert "middle/kernel" in transposed(programs[0]) ^ transposed(programs[1])
    for first, second in (programs, programs[::-1]):
        path = tmp_path / first.manifest.target
        session = saved(first, path)
        with session, TrainingSession(second.data) as other:
            other.restore(path)
            for name, array in session.parameters().items():
                np.testing.assert_array_equal(other.parameters()[name], array)
            for _ in range(3):
                losses = [s.train(*data(), learning_rate=0.01) for s in (session, other)]
                np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("update", [(("*", 0.5),), (("conv/kernel", converter.LoRA(2)), ("head/*", 1)), (("*", 1),)])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_of_every_scheme(update: Any, optimizer: str, tmp_path: Path) -> None:
    options = {"update": update, "optimizer": optimizer}
    goes_on(saved(built(**options), tmp_path / "s"), built(**options, target="gpu", batch=4), tmp_path / "s", rows=4)


def with_weight(name: str, change: Any) -> Any:
    layer, kind = name.split("/")
    params = weights()
    params[layer][kind] = change(params[layer][kind])
    return params


def plus_one(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flat[-1] += 1
    return array


OTHERS: Mapping[str, tuple[Any, dict[str, Any], str]] = {
    "a frozen weight": (
        lambda: model(params=with_weight("conv/kernel", plus_one)),
        {},
        "the frozen weights differ: conv/kernel. Restored",
    ),
    "more classes": (
        lambda: model(params=weights(7)),
        {},
        "head/bias is 5 there, 7 here; head/kernel is 8x5 there, 8x7 here",
    ),
    "another function": (
        lambda: model(MODEL.replace("tanh", "sigmoid")),
        {},
        "the forward computation differs. Restored",
    ),
    "another scheme": (model, {"update": "head"}, "middle/kernel trains there and is frozen here"),
    "more trains": (model, {"update": "full"}, "conv/kernel is frozen there and trains here"),
    "another part": (model, {"update": {"middle/*": 0.5, "head/*": 1}}, "another part of middle/kernel trains there"),
    "another optimizer": (model, {"optimizer": "sgd"}, "the optimizer is adam there, sgd here"),
    "one of the same slots": (model, {"optimizer": "adamw"}, "the optimizer is adam there, adamw here"),
    "int8": (
        model,
        {"frozen": "int8", "calibration": data()[0]},
        "the frozen layers are float32 there, rounded here",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_program_is_refused_with_what_differs(other: str, tmp_path: Path) -> None:
    of, options, said = OTHERS[other]
    program = _built(of(), **options)
    saved(built(), tmp_path / "s").close()
    before = (tmp_path / "s").read_bytes()
    with TrainingSession(program.data) as session:
        state = session.state()
        with pytest.raises(ForeignState, match=f"belongs to another program: .*{said}"):
            session.restore(tmp_path / "s")
        with pytest.raises(UsageError, match="is not overwritten: it belongs to another program"):
            session.save(tmp_path / "s")
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, state[name])
    assert (tmp_path / "s").read_bytes() == before


def test_the_rest_is_taken_over_where_the_app_asks_for_it(tmp_path: Path) -> None:
    first = saved(built(), tmp_path / "s")
    with first, TrainingSession(_built(model(params=weights(7)), batch=4).data) as grown:
        fresh = grown.state()
        grown.train(*(array[:4] for array in data(7)))
        restored = grown.restore(tmp_path / "s", adopt="matching")
        head = {t.name for t in grown.manifest.state_tensors if "head" in t.name}
        assert set(restored.left) == head
        assert {*restored.adopted, *restored.left} == {t.name for t in grown.manifest.state_tensors}
        assert any("head/kernel is 8x5 there, 8x7 here" in said for said in restored.differences)
        np.testing.assert_array_equal(grown.parameters()["middle/kernel"], first.parameters()["middle/kernel"])
        for name in head:
            np.testing.assert_array_equal(grown.state()[name], fresh[name])
        grown.train(*(array[:4] for array in data(7)))
        # What was taken over on purpose may be replaced, and stays as the older generation.
        assert grown.save(tmp_path / "s") == 2
        assert grown.restore(tmp_path / "s").differences == ()
    with TrainingSession(built().data) as session, pytest.raises(UsageError, match="another program"):
        session.restore(tmp_path / "s")


def test_nothing_that_matches(tmp_path: Path) -> None:
    saved(built(), tmp_path / "s").close()
    params = {"w": np.ones((12, 3), np.float32)}
    other = jax_frontend.Model(lambda p, x: x @ p["w"], params, inputs=[jax.ShapeDtypeStruct((1, 12), jnp.float32)])
    with TrainingSession(converter.build(other, optimizer="sgd").data) as session:
        with pytest.raises(UsageError, match="no weight of it matches"):
            session.restore(tmp_path / "s", adopt="matching")
        with pytest.raises(UsageError, match="adopt is None or 'matching', not 'all'"):
            session.restore(tmp_path / "s", adopt="all")


def as_saved_before(path: Path, program: Program, state: Mapping[str, np.ndarray]) -> None:
    """The state as the version before wrote it: of a program whose hash nobody knows today."""
    assert [t.tensor for t in program.manifest.state_tensors] == list(state)
    path.write_bytes(packed_in_version_1("cd" * 32, 4, dict(state)))


@pytest.mark.parametrize("target", ["litert-2", "gpu"])
@pytest.mark.parametrize("width", [8, 256])
def test_an_old_state_goes_on_and_says_what_cannot_be_told(width: int, target: str, tmp_path: Path) -> None:
    """Also where the old program stored a square matrix the other way round."""
    params = weights(width=width)
    program, other = (_built(model(params=params), target=t, batch=8) for t in ("litert-2", target))
    with saved(program, tmp_path / "new") as session, TrainingSession(other.data) as second:
        as_saved_before(tmp_path / "s", program, session.state())
        with pytest.warns(StateWarning, match="its tensors fit this program"):
            restored = second.restore(tmp_path / "s")
        assert (restored.left, restored.differences, restored.generation) == ((), (), 4)
        for name, array in session.parameters().items():
            np.testing.assert_array_equal(second.parameters()[name], array)
        losses = [[s.train(*data(), learning_rate=0.01) for _ in range(3)] for s in (session, second)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        assert second.save(tmp_path / "s") == 5


def test_an_old_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    with saved(built(), tmp_path / "new") as session, TrainingSession(_built(model(params=weights(7))).data) as other:
        as_saved_before(tmp_path / "s", built(), session.state())
        with pytest.raises(UsageError, match="head/kernel is 8x5 there, 8x7 here"):
            other.restore(tmp_path / "s")
        assert "middle/kernel" in other.restore(tmp_path / "s", adopt="matching").adopted


def test_a_square_matrix_that_is_as_near_both_ways_is_not_guessed(tmp_path: Path) -> None:
    """Built as zeros, a matrix says nothing of which way round it lies."""
    program = _built(model(params=with_weight("middle/kernel", np.zeros_like)))
    with saved(program, tmp_path / "new") as session, TrainingSession(program.data) as other:
        as_saved_before(tmp_path / "s", program, session.state())
        with pytest.raises(UsageError, match="which way round middle/kernel lies there cannot be told"):
            other.restore(tmp_path / "s")
        assert "middle/kernel" in other.restore(tmp_path / "s", adopt="matching").left


def test_a_weight_whose_name_ends_with_another_s_keeps_its_change(tmp_path: Path) -> None:
    """Of `dense` other channels train here; `my_dense` is as it was, and so is what was added to it."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal((8, 8)).astype(np.float32) / 3 for name in ("dense", "my_dense", "head")}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return jax.nn.tanh(jax.nn.tanh(x @ params["dense"]) @ params["my_dense"]) @ params["head"]

    chain = jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 8), "float32")])
    x, y = rng.standard_normal((ROWS, 8)).astype(np.float32), (np.arange(ROWS) % 8).astype(np.int32)
    ours, theirs = (
        _built(chain, update={"dense": Channels(part), "my_dense": Channels(0.5), "head": 1}) for part in (0.5, 0.25)
    )
    with TrainingSession(ours.data) as session:
        session.train(x, y, learning_rate=0.1)
        session.save(tmp_path / "ours.state")
        added = session.state()["my_dense/change"]
    assert added.any()
    with TrainingSession(theirs.data) as session:
        taken = session.restore(tmp_path / "ours.state", adopt="matching")
        assert {"dense/change", "dense/channels"} <= set(taken.left)
        assert {"my_dense/change", "my_dense/channels", "head"} <= set(taken.adopted)
        np.testing.assert_array_equal(session.state()["my_dense/change"], added)


def test_a_last_layer_is_taken_over_with_the_names_of_its_classes_or_not_at_all(tmp_path: Path) -> None:
    """Names and bias of classes beside a kernel that is as built would call each row by the largest bias."""
    room = {"update": "head", "head": "class_means", "classes": "5+2", "batch": ROWS, "optimizer": "adam"}
    x, y = data()
    with TrainingSession(converter.build(model(), **room).data) as session:
        session.set_class_means(x, y)
        session.add_class("mine", x[:3])
        session.save(tmp_path / "room.state")
    wider = converter.build(model(), **room, head_reads="blocks")
    of_seven = converter.build(model(params=weights(classes=7)), update="head", batch=ROWS, optimizer="adam")
    with TrainingSession(of_seven.data) as session:
        session.save(tmp_path / "seven.state")
    for program, state in ((wider, "room"), (converter.build(model(), **room), "seven")):
        with TrainingSession(program.data) as session:
            begun = session.infer(x)
            with pytest.raises(UsageError, match="no weight of it matches one of this program"):
                session.restore(tmp_path / f"{state}.state", adopt="matching")
            np.testing.assert_array_equal(session.infer(x), begun)
            assert session.classes() == [*"01234", None, None]
    with TrainingSession(of_seven.data) as session:
        begun = session.infer(x)
        with pytest.raises(UsageError, match="no weight of it matches one of this program"):  # a label is free there
            session.restore(tmp_path / "room.state", adopt="matching")
        np.testing.assert_array_equal(session.infer(x), begun)
    with TrainingSession(converter.build(model(), **room).data) as session:
        session.restore(tmp_path / "room.state")
        session.add_class("mine, too", x[3:6])
        session.save(tmp_path / "room.state")
    with TrainingSession(of_seven.data) as session:
        taken = session.restore(tmp_path / "room.state", adopt="matching")
        assert {"head/kernel", "head/bias"} <= set(taken.adopted)


@pytest.mark.parametrize("names", [np.zeros(7, np.int32), np.zeros((7, 16), np.float32)], ids=["flat", "float"])
def test_a_tensor_that_has_the_name_alone_says_nothing_of_classes(names: np.ndarray) -> None:
    program = converter.build(model(params=weights(classes=7)), update="head", batch=ROWS, optimizer="sgd", check=False)
    here = StateSpec.of(read_program(program.data))
    called = StateTensor(class_names.TENSOR, names.shape, names.dtype.name, slot=False)
    there = dataclasses.replace(here, program="another", tensors=(*here.tensors, called))
    found = carried({**here.built, class_names.TENSOR: names}, there, here, partly=True)
    assert found.keys() == here.built.keys()
