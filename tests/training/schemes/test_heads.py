"""Heads that a scheme trains, and those that it leaves as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_frontend
from converter.passes import absorb_layout
from converter.passes.canonical import canonicalize
from converter.passes.idioms import with_idioms
from converter.training.schemes import update_scheme
from converter.training.schemes.heads import kept_head_notes, without_adapter_notes
from examples import llama


@pytest.mark.parametrize("classes", [None, 3], ids=["over words", "over classes"])
def test_a_head_over_the_words_of_the_embedding_stays_frozen(classes: int | None) -> None:
    """But of a classifier the head is fresh, and trains; so it does where it is what was asked for."""
    model = llama.build(layers=2, width=64, heads=4, key_heads=2, length=8, vocabulary=131)
    if classes is not None:
        head = np.zeros((64, classes), np.float32)
        model = replace(model, params={**model.params, "head": head})
    graph = with_idioms(jax_frontend.trace(model, 2))
    for update in ("lora-4", "sparse", "channels-50", "head"):
        rows = update_scheme(update).resolve(graph)
        (row,) = [row for row in rows if row.parameter == "head"]
        kept = classes is None and update != "head"
        assert (row.fraction, row.adapter) == (0 if kept else 1, None)
        assert [note.subject for note in kept_head_notes({one.parameter: one.why for one in rows})] == ["head"] * kept
        assert any(row.fraction or row.adapter for row in rows)


@pytest.mark.parametrize("update", ["head", "sparse", "lora-2", "lora-2:all-linear", "dora-2"])
def test_a_weight_times_a_number_is_a_kernel(update: str) -> None:
    """A head over a temperature is the head, and layers that are multiplied have adapters, or it is said."""
    shapes = {"a": {"kernel": (8, 16)}, "b": {"kernel": (16, 16)}, "c": {"kernel": (16, 4)}}
    params = {layer: {name: np.ones(shape, np.float32) for name, shape in of.items()} for layer, of in shapes.items()}

    def apply(params: Any, x: Any) -> Any:
        hidden = jnp.tanh(jnp.tanh(x @ params["a"]["kernel"] * 0.3) @ params["b"]["kernel"])
        return hidden @ params["c"]["kernel"] / 10

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 8), "float32")])
    rows = update_scheme(update).resolve(absorb_layout(canonicalize(jax_frontend.trace(model, 64))))
    trains = {row.parameter for row in rows if row.fraction}
    assert ("c/kernel" in trains) == (update != "lora-2:all-linear")
    adapted = {row.parameter for row in rows if row.adapter}
    wanted = {"lora-2": {"a/kernel", "b/kernel"}, "dora-2": {"b/kernel"}}
    assert adapted == wanted.get(update.partition(":")[0], set())
    said = [note.subject for note in without_adapter_notes({row.parameter: row.why for row in rows})]
    assert said == ["a/kernel"] * (update == "dora-2")


@pytest.mark.parametrize("names", [("w1", "b1", "w2", "b2"), (0, 1, 2, 3)], ids=str)
def test_names_of_one_part_leave_the_head_its_bias(names: tuple[Any, ...]) -> None:
    shapes = ((8, 16), (16,), (16, 4), (4,))
    params = {f"{name}": np.ones(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    w1, b1, w2, b2 = params

    def apply(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params[w1] + params[b1]) @ params[w2] + params[b2]

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 8), "float32")])
    rows = update_scheme("head").resolve(absorb_layout(canonicalize(jax_frontend.trace(model, 4))))
    assert {row.parameter for row in rows if row.fraction} == {w2, b2}
