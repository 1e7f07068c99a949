"""The signature `features`: cached outputs of the frozen first layers, on which a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from converter.backend.quantize.kept import kept_as_int8
from converter.backend.stages import to_builtins
from converter.driver.compilation import Compilation
from converter.driver.features.signatures import prepared
from converter.driver.features.trained_int8 import stored
from converter.driver.features.watch import with_watch
from converter.ir import Graph
from converter.support.errors import UsageError
from converter.training.schemes import cut_frozen_prefix, has_frozen_prefix, join


def check(c: Compilation) -> Compilation:
    """Raise UsageError where the first layer trains: then there is nothing to keep."""
    if c.offers("features") and not has_frozen_prefix(c.graphs.model):
        raise UsageError(
            "there are no features to keep: the first layer trains. Choose a scheme that freezes the first layers, or "
            "leave the signature `features` out.",
            page="arguments",
        )
    return c


def add_signatures(c: Compilation) -> Compilation:
    """Add `features` and the step on them, lowered."""
    if not c.offers("features"):
        return c
    features, rest = (
        cut_frozen_prefix(c.graphs.model) if c.graphs.prefix is None else (c.graphs.prefix, c.graphs.suffix)
    )
    on_features = c.step.graphs_on_features(prepared(c, rest), c.step_goal, c.rule)
    on_features = with_watch(c, stored(c, on_features))
    steps = {name: to_builtins(graph, c.target) for name, graph in on_features.items()}
    kept, widened = kept_as_int8(
        to_builtins(prepared(c, features), c.target) if c.graphs.prefix is None else c.graphs.prefix
    )
    steps = {name: _in_order(join(widened, graph), list(kept.outputs)) for name, graph in steps.items()}
    return replace(c, program=c.program.including(features=kept, **steps))


def _in_order(graph: Graph, kept: Sequence[str]) -> Graph:
    """Return the graph, whose inputs are what is kept, in that order, and then the others."""
    places = {name: place for place, name in enumerate(kept)}
    graph.inputs.sort(key=lambda value: places.get(value.name, len(places)))
    return graph
