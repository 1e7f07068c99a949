"""Adversarial order: each parameter is overwritten as early as what must run before it allows."""

from __future__ import annotations

from typing import Any

import pytest

from converter.backend import stages
from converter.backend.schedule.order import dependencies, on_demand
from converter.ir import Graph, Node


def overwrite_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let builds order operators so."""
    monkeypatch.setattr(stages, "schedule", lambda graph, *_, **__: eager(graph))


def eager(graph: Graph) -> Graph:
    """Return a graph in that order: the update that waits for least first, and at the end what no update waits for."""
    after, makers = dependencies(graph), graph.producers()
    writers = dict.fromkeys(makers[new] for new in graph.updates.values() if new in makers)
    ordered = graph.copy()
    ordered.nodes = on_demand([*sorted(writers, key=lambda w: len(_needed(w, after))), *graph.nodes], after)
    return ordered


def _needed(node: Node, after: dict[Node, list[Node]]) -> set[Node]:
    found: set[Node] = set()
    left: list[Any] = [node]
    while left:
        new = set(after[left.pop()]) - found
        found |= new
        left += new
    return found
