"""`dropout`: random layers act in a step, or not at all."""

from __future__ import annotations

from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.ir import Graph
from converter.passes.canonical import canonicalize
from converter.training.dropout import dropouts, without_dropout
from converter.training.step import with_dropout


def drop_marks(c: Compilation) -> Compilation:
    """Leave out what is random in training, unless a step is to draw."""
    return c if c.options.dropout == "train" else c.staged(model=without_dropout(c.graphs.model))


def draw_in_step(c: Compilation) -> Compilation:
    """Let the step draw masks, by the number of the call."""
    return replace(c, step=with_dropout(c.step, *c.counter)) if dropouts(c.graphs.model) else c


def for_inference(c: Compilation) -> Compilation:
    """Keep a model without random marks, for all signatures but the step."""
    return c.staged(inference=inferring(c.graphs.suffix))


def inferring(graph: Graph) -> Graph:
    """Return a graph without random marks."""
    return canonicalize(without_dropout(graph)) if dropouts(graph) else graph
