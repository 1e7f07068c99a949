"""Minimum vertex cut between two sets, by maximum flow (Edmonds and Karp)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import Any

_SOURCE, _SINK = "source", "sink"


def minimum_cut(
    weights: Mapping[Any, int],
    edges: Iterable[tuple[Hashable, Hashable]],
    sources: Iterable[Hashable],
    sinks: Iterable[Hashable],
) -> set[Any]:
    """Return the vertices of the least total weight without which no path leads from a source to a sink.

    Of several such sets the one nearest to the sources. A source or a sink may be in it.

    Args:
        weights: of each vertex.
        edges: pairs of vertices.
        sources: where paths begin.
        sinks: where they end.
    """
    endless = sum(weights.values()) + 1
    room: dict[Any, dict[Any, int]] = {}

    def connect(a: Any, b: Any, capacity: int) -> None:
        room.setdefault(a, {}).setdefault(b, 0)
        room.setdefault(b, {}).setdefault(a, 0)
        room[a][b] += capacity

    # A vertex is a pipe of its weight from its entrance (0) to its exit (1).
    for vertex, weight in weights.items():
        connect((vertex, 0), (vertex, 1), weight)
    for a, b in edges:
        connect((a, 1), (b, 0), endless)
    for vertex in sources:
        connect(_SOURCE, (vertex, 0), endless)
    for vertex in sinks:
        connect((vertex, 1), _SINK, endless)
    while True:
        came_from = _search(room)
        if _SINK not in came_from:
            return {v for v in weights if (v, 0) in came_from and (v, 1) not in came_from}
        path = [_SINK]
        while path[-1] != _SOURCE:
            path.append(came_from[path[-1]])
        pipes = [(a, b) for b, a in pairwise(path)]
        flow = min(room[a][b] for a, b in pipes)
        for a, b in pipes:
            room[a][b] -= flow
            room[b][a] += flow


def _search(room: Mapping[Any, Mapping[Any, int]]) -> dict[Any, Any]:
    """Return all that can be reached from the source through pipes with room, and from where; breadth first."""
    came_from: dict[Any, Any] = {_SOURCE: None}
    waiting = deque([_SOURCE])
    while waiting:
        here = waiting.popleft()
        for there, left in room.get(here, {}).items():
            if left and there not in came_from:
                came_from[there] = here
                waiting.append(there)
    return came_from
