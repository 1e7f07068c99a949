"""Steps that can make a weight infinite or NaN: the manifest names what can, and the step says when it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.ir import Graph
from converter.training.watch import poles, watched, words

#: The signatures that change what trains.
UPDATING = ("train", "train_features", "apply")


def find(c: Compilation) -> Compilation:
    """Find the poles of a step."""
    steps = [c.program[name] for name in (c.request.step, "apply") if name in c.program]
    return replace(c, poles=words(node for step in steps for node in poles(step)))


def watch(c: Compilation) -> Compilation:
    """Where a step has poles and keeps its state in variables, let it tell of what it writes.

    What goes in and out of a call is looked at by who makes it.
    """
    return replace(c, program=c.program.including(**with_watch(c, c.program)))


def with_watch(c: Compilation, graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """Return graphs by signature, those that update watched where this program's are."""
    if not c.poles or c.request.state != "variables":
        return dict(graphs)
    return {name: watched(graph) if name in UPDATING else graph for name, graph in graphs.items()}
