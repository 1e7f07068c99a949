"""A state says which classes it was trained for: under other labels its last layer means nothing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from converter.driver.program import Program
from converter.runtime import TrainingSession
from converter.runtime.state.state_file import ForeignState
from converter.support.errors import UsageError
from tests.runtime.state.test_interchange import SCHEME, data, goes_on, model, saved, weights

NAMES = ["ant", "bee", "cat", "dog", "eel"]
SORTED_ANEW = ["ant", "bee", "dog", "cat", "eel"]
SAID = "class 2 of output is 'cat' there, 'dog' here: build with the labels of the state, in its order"


def built(labels: list[str] | None, **options: Any) -> Program:
    options = {"optimizer": "adam", "update": SCHEME, "batch": 8} | options
    return converter.build(model(), loss="sparse_categorical_crossentropy", labels=labels, **options)


def header(path: Path) -> dict[str, Any]:
    """Read as docs/state-file.md says it."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<I", raw, 12)
    return json.loads(raw[48 : 48 + length])


def test_the_header_has_labels_where_the_program_has_some(tmp_path: Path) -> None:
    for name, labels in (("with", NAMES), ("without", None)):
        saved(built(labels), tmp_path / name).close()
    assert header(tmp_path / "with")["labels"] == [NAMES]
    assert list(header(tmp_path / "with")) == [*header(tmp_path / "without"), "labels"]


def test_the_same_labels_go_on_in_another_build(tmp_path: Path) -> None:
    goes_on(saved(built(NAMES), tmp_path / "s"), built(NAMES, target="gpu", batch=4), tmp_path / "s", rows=4)


@pytest.mark.parametrize(("there", "here"), [(NAMES, None), (None, NAMES)])
def test_where_one_side_says_nothing_nothing_is_compared(there: Any, here: Any, tmp_path: Path) -> None:
    goes_on(saved(built(there), tmp_path / "s"), built(here), tmp_path / "s")


def test_classes_in_another_order_are_refused_by_the_first_that_differs(tmp_path: Path) -> None:
    """All else is the same in both programs, be it the batch or not."""
    saved(built(NAMES), tmp_path / "s").close()
    before = (tmp_path / "s").read_bytes()
    for batch in (8, 2):
        with TrainingSession(built(SORTED_ANEW, batch=batch).data) as session:
            state = session.state()
            with pytest.raises(ForeignState, match=f"it belongs to another program: {SAID}. Restored with adopt"):
                session.restore(tmp_path / "s")
            with pytest.raises(UsageError, match=f"is not overwritten: it belongs to another program: {SAID}"):
                session.save(tmp_path / "s")
            for name, array in session.state().items():
                np.testing.assert_array_equal(array, state[name])
    assert (tmp_path / "s").read_bytes() == before


def test_what_does_not_depend_on_the_classes_is_taken_over(tmp_path: Path) -> None:
    with saved(built(NAMES), tmp_path / "s") as first, TrainingSession(built(SORTED_ANEW).data) as second:
        fresh = second.state()
        restored = second.restore(tmp_path / "s", adopt="matching")
        assert restored.differences == (SAID,)
        assert set(restored.left) == {t.name for t in second.manifest.state_tensors if "head" in t.name}
        for tensor in second.manifest.state_tensors:
            expected = (fresh if tensor.name in restored.left else first.state())[tensor.tensor]
            np.testing.assert_array_equal(second.state()[tensor.tensor], expected)
        assert second.save(tmp_path / "s") == 2
        assert second.restore(tmp_path / "s").differences == ()
    with (
        TrainingSession(built(NAMES).data) as first,
        pytest.raises(ForeignState, match="class 2 of output is 'dog' there"),
    ):
        first.restore(tmp_path / "s")


def test_a_state_of_nothing_but_the_last_layer_gives_nothing(tmp_path: Path) -> None:
    saved(built(NAMES, update="head"), tmp_path / "s").close()
    with (
        TrainingSession(built(SORTED_ANEW, update="head").data) as session,
        pytest.raises(UsageError, match=f"no weight of it matches one of this program: {SAID}"),
    ):
        session.restore(tmp_path / "s", adopt="matching")


#: A scheme, and what of its tensors is of classes.
SCHEMES: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "lora": ({"*/kernel": converter.LoRA(2)}, {}, {"head/kernel/lora_b"}),
    "skip-lora": ("skip-lora-2", {}, {f"{layer}/kernel/skip_b" for layer in ("conv", "middle", "head")}),
    "channels": (
        {"*/kernel": converter.Channels(0.5)},
        {},
        {"head/kernel/change", "head/kernel/channels"},
    ),
    "part": ({"head/*": 0.5, "middle/*": 1}, {}, {"head/kernel", "head/bias"}),
    "int8": (
        SCHEME,
        {"train_as": "int8", "optimizer": "sgd"},
        {"head/kernel", "head/kernel/scales", "head/bias"},
    ),
    "frozen": ({"middle/*": 1}, {}, set()),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_of_every_scheme(scheme: str, tmp_path: Path) -> None:
    update, options, of_classes = SCHEMES[scheme]
    options = {"optimizer": "momentum", "update": update} | options
    saved(built(NAMES, **options), tmp_path / "s").close()
    with TrainingSession(built(SORTED_ANEW, **options).data) as session:
        with pytest.raises(ForeignState, match=SAID):
            session.restore(tmp_path / "s")
        restored = session.restore(tmp_path / "s", adopt="matching")
        trained = {t.name for t in session.manifest.state_tensors if not t.slot}
        assert set(restored.left) & trained == of_classes & trained
        assert all(any(name.endswith(f"/{one}") for one in of_classes) for name in set(restored.left) - trained)


def two_outputs() -> jax_frontend.Model:
    rng = np.random.default_rng(0)
    params = {
        name: rng.standard_normal((4, n)).astype(np.float32) for name, n in (("kind", 3), ("size", 2), ("own", 4))
    }

    def apply(params: Any, x: jax.Array) -> dict[str, jax.Array]:
        hidden = jax.nn.tanh(x @ params["own"])
        return {"kind": hidden @ params["kind"], "size": jax.nn.sigmoid(hidden @ params["size"])}

    return jax_frontend.Model(apply, params, inputs=[jax.ShapeDtypeStruct((1, 4), "float32")])


def test_labels_are_of_an_output(tmp_path: Path) -> None:
    """Two labels name the sizes, three the kinds: of either the layer is left that tells these apart, and no other."""
    options: dict[str, Any] = {"optimizer": "sgd", "update": "full", "batch": 2}
    options["loss"] = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    programs = {
        text: converter.build(two_outputs(), labels=list(text), **options) for text in ("abc", "cba", "xy", "yx")
    }
    for text, program in programs.items():
        with TrainingSession(program.data) as session:
            session.save(tmp_path / text)
    assert header(tmp_path / "abc")["labels"] == [list("abc")]
    assert header(tmp_path / "xy")["labels"] == [[], list("xy")]
    for here, there, left, said in (
        ("cba", "abc", ("kind",), "class 0 of kind is 'a' there, 'c' here"),
        ("yx", "xy", ("size",), "class 0 of size is 'x' there, 'y' here"),
        ("xy", "abc", (), ""),
        ("abc", "xy", (), ""),
    ):
        with TrainingSession(programs[here].data) as session:
            restored = session.restore(tmp_path / there, adopt="matching")
            assert restored.left == left
            assert [one.startswith(said) for one in restored.differences] == [True] * bool(said)


ROOM: dict[str, Any] = {"update": "head", "head": "class_means", "optimizer": "sgd"}


def test_a_state_that_names_its_classes_goes_on_by_these_names(tmp_path: Path) -> None:
    """An app that sorts its classes anew: what the state calls them counts."""
    x, y = data()
    with TrainingSession(built(NAMES, classes="5+1", **ROOM).data) as first:
        first.set_class_means(x, y)
        first.add_class("fly", x[:3])
        first.rename_class("bee", "wasp")
        first.save(tmp_path / "s")
        assert "labels" not in header(tmp_path / "s")
        with TrainingSession(built(SORTED_ANEW, classes="5+1", **ROOM).data) as second:
            assert second.restore(tmp_path / "s").differences == ()
            assert second.classes() == first.classes() == ["ant", "wasp", "cat", "dog", "eel", "fly"]
            np.testing.assert_array_equal(second.infer(x), first.infer(x))


def test_the_last_layer_of_a_state_that_names_its_classes_is_not_that_of_labels(tmp_path: Path) -> None:
    """Of two programs whose layers have as many rows: the names may be any, also of classes that are not there yet."""
    x, y = data()
    with TrainingSession(built(NAMES, classes="5+1", **ROOM).data) as first:
        first.set_class_means(x, y)
        first.save(tmp_path / "s")
    wide = converter.build(model(params=weights(6)), labels=[*NAMES, "fly"], optimizer="sgd", update="head", batch=8)
    with TrainingSession(wide.data) as second, pytest.raises(UsageError, match="no weight of it matches"):
        second.restore(tmp_path / "s", adopt="matching")
