"""Legalization: patterns that an engine refuses or computes wrongly, and their replacements.

Each file has the patterns of one kind, each with the probe that shows why. A target's table names those of its engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from converter.backend import builtins as tfl
from converter.backend.legalize import (
    absent,
    constants,
    copies,
    functions,
    matrices,
    micro,
    movement,
    ranks,
    stored,
    windows,
)
from converter.backend.legalize.pattern import PATTERNS, Pattern
from converter.ir import Graph, Node, Value, nested
from converter.ir.rewrite import Rewriter, map_bodies, rewrite
from converter.passes.common_subexpressions import merge_common_subexpressions
from converter.passes.fold_constants import fold_constants
from converter.support.errors import UsageError, nearest

#: A replacement may be of another pattern, which is replaced in turn.
_MOST_ROUNDS = 8


def without(lowered: Graph, names: Sequence[str]) -> Graph:
    """The graph with all nodes of the named patterns replaced, where these have a replacement that fits.

    Raises:
        UsageError: a target's table names a pattern that there is not.
    """
    if not names:
        return lowered
    if ranks.NAME in names:
        lowered = _with_flat_state(lowered, ranks.MOST)
    return _replaced(lowered, _named(names))


def _replaced(lowered: Graph, wanted: Sequence[Pattern]) -> Graph:
    """Return the graph with all nodes of some patterns replaced, in bodies too."""

    def replaced(b: Rewriter, node: Node) -> Value | tuple[Value, ...] | None:
        made = (pattern.replace(b, node) for pattern in wanted if pattern.matches(b, node))
        return next((results for results in made if results is not None), None)

    lowered = map_bodies(lowered, lambda body: _replaced(body, wanted))
    for _ in range(_MOST_ROUNDS):
        before, lowered = (
            lowered,
            merge_common_subexpressions(fold_constants(rewrite(lowered, replaced)), lambda op: op.copies()),
        )
        if lowered.nodes == before.nodes:
            break
    return lowered


def within_ranks(lowered: Graph) -> Graph:
    """Return the graph with no more axes than TensorFlow Lite's kernels and XNNPACK's variables take.

    Which parameters are stored otherwise depends on nothing else, as all signatures of a program share them.
    """
    lowered = _with_flat_state(lowered, ranks.MOST_OF_VARIABLES)
    values = {v for graph in nested(lowered) for node in graph.nodes for v in (*node.inputs, *node.outputs)}
    too_many = any(v.type.rank > ranks.MOST_HERE for v in values)
    return _replaced(lowered, _named([ranks.NAME])) if too_many else lowered


def _with_flat_state(lowered: Graph, most: int) -> Graph:
    return ranks.with_flat_state(map_bodies(lowered, lambda body: _with_flat_state(body, most)), most)


def left(lowered: Graph, names: Sequence[str]) -> Iterator[tuple[Node, Pattern]]:
    """The nodes that are of one of the named patterns, without those in the bodies of others."""
    wanted, found = _named(names), list[tuple[Node, Pattern]]()

    def look(b: Rewriter, node: Node) -> None:
        found.extend((node, pattern) for pattern in wanted if pattern.matches(b, node))

    if wanted:
        rewrite(lowered, look)
    yield from found


def _named(names: Sequence[str]) -> list[Pattern]:
    if unknown := [name for name in names if name not in PATTERNS]:
        raise UsageError(
            f"the target's table avoids {unknown[0]!r}, which is no pattern.{nearest(unknown[0], PATTERNS)}",
            page="targets",
        )
    return [pattern for name, pattern in PATTERNS.items() if name in names]


__all__ = [
    "PATTERNS",
    "Pattern",
    "absent",
    "constants",
    "copies",
    "functions",
    "left",
    "matrices",
    "micro",
    "movement",
    "ranks",
    "stored",
    "windows",
    "without",
]
