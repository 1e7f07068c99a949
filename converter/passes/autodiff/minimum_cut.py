"""Minimum vertex cut between two sets, by maximum flow (Dinitz): all shortest paths are filled between two searches."""

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
        levels = _levels(room)
        if _SINK not in levels:
            return {v for v in weights if (v, 0) in levels and (v, 1) not in levels}
        _fill(room, levels)


def _levels(room: Mapping[Any, Mapping[Any, int]]) -> dict[Any, int]:
    """Return how far from the source all is that can be reached through pipes with room."""
    levels: dict[Any, int] = {_SOURCE: 0}
    waiting = deque([_SOURCE])
    while waiting:
        here = waiting.popleft()
        for there, left in room.get(here, {}).items():
            if left and there not in levels:
                levels[there] = levels[here] + 1
                waiting.append(there)
    return levels


def _fill(room: Mapping[Any, dict[Any, int]], levels: Mapping[Any, int]) -> None:
    """Send through pipes that lead one level on what they hold, until no path to the sink is left."""
    ways = {here: [there for there in room[here] if levels.get(there) == level + 1] for here, level in levels.items()}
    path = [_SOURCE]
    while path:
        here = path[-1]
        if here == _SINK:
            pipes = list(pairwise(path))
            flow = min(room[a][b] for a, b in pipes)
            for a, b in pipes:
                room[a][b] -= flow
                room[b][a] += flow
            full = next(i for i, (a, b) in enumerate(pipes) if not room[a][b])
            del path[full + 1 :]
        elif not ways[here]:
            path.pop()
            if path:
                ways[path[-1]].pop()
        elif room[here][ways[here][-1]]:
            path.append(ways[here][-1])
        else:
            ways[here].pop()
