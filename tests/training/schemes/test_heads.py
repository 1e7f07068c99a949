"""Heads that a scheme trains, and those that it leaves as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import jax_frontend
from converter.passes.idioms import with_idioms
from converter.training.schemes import update_scheme
from converter.training.schemes.heads import kept_head_notes
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
