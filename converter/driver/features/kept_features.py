"""The signature `features`: cached outputs of the frozen first layers, on which a step, `evaluate` and `infer` run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from converter.backend.quantize.kept import kept_as_int8
from converter.backend.stages import to_builtins
from converter.driver.compilation import Compilation
from converter.driver.features.dropout import inferring
from converter.driver.features.signatures import prepared, scored_of, stored_alike
from converter.driver.features.trained_int8 import stored
from converter.driver.features.watch import with_watch
from converter.ir import Graph
from converter.ir.module import Module
from converter.passes import eliminate_dead_code
from converter.program.manifest import ON_FEATURES
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
    """Add `features`, the step on them, and `evaluate` and `infer` where these are asked for, lowered."""
    if not c.offers("features"):
        return c
    features, rest = (
        cut_frozen_prefix(c.graphs.model) if c.graphs.prefix is None else (c.graphs.prefix, c.graphs.suffix)
    )
    on_features = with_watch(c, stored(c, _on_features(c, rest)))
    lowered = {
        name: to_builtins(graph, c.once if name == f"infer{ON_FEATURES}" else c.target)
        for name, graph in on_features.items()
    }
    kept, widened = kept_as_int8(
        to_builtins(prepared(c, features), c.target) if c.graphs.prefix is None else c.graphs.prefix
    )
    reading = {name: _in_order(join(widened, graph), list(kept.outputs)) for name, graph in lowered.items()}
    return replace(c, program=c.program.including(features=kept, **reading))


def _on_features(c: Compilation, rest: Graph) -> dict[str, Graph]:
    """Return what is asked for on features, by signature, of what comes after them."""
    made = c.step.graphs_on_features(prepared(c, rest), c.step_goal, c.rule)
    inference = inferring(rest)
    if "evaluate" in c.request.on_features:
        made[f"evaluate{ON_FEATURES}"] = eliminate_dead_code(scored_of(c, inference))
    if "infer" in c.request.on_features:
        made[f"infer{ON_FEATURES}"] = stored_alike(c, inference)
    return made


def leave_whole_out(c: Compilation) -> Compilation:
    """Leave out what is asked for on features alone; `infer` of the model's inputs is still what is exported."""
    step = {"train": c.request.step}
    alone = {step.get(name, name) for name in c.request.on_features_alone}
    if not alone:
        return c
    kept: dict[str, Graph] = {}
    for name, graph in c.program.items():  # the step stays the first
        if name in alone:
            kept[f"{name}{ON_FEATURES}"] = c.program[f"{name}{ON_FEATURES}"]
        else:
            kept.setdefault(name, graph)
    return replace(c, program=Module(kept), whole_infer=c.program["infer"] if "infer" in alone else None)


def _in_order(graph: Graph, kept: Sequence[str]) -> Graph:
    """Return the graph, whose inputs are what is kept, in that order, and then the others."""
    places = {name: place for place, name in enumerate(kept)}
    graph.inputs.sort(key=lambda value: places.get(value.name, len(places)))
    return graph
