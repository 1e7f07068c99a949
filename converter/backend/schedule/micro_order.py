"""Order of operators for TensorFlow Lite Micro: the one that its planner finds the smallest arena for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from converter.backend.builtins import Reshape
from converter.backend.schedule.axis_parts import Region, region_in_parts, region_of
from converter.backend.schedule.growth import by_growth, most_at_once
from converter.backend.schedule.micro_graph import arena_of, with_int8_inputs
from converter.backend.schedule.order import schedule
from converter.backend.schedule.recompute import recompute
from converter.ir import Graph, Node

#: Bytes of a value that may be worth an operator, whose records take a hundred.
_SMALLEST = 512
#: Into how many parts values are cut, how many values are tried at once, and how often.
_PARTS, _TRIED, _ROUNDS = (2, 4, 8), 6, 4
#: Share of what is there when most is, that values must be of which some places are to be there at once.
_SHARE = 0.2
#: Share of the arena that operators must save which are there for nothing else.
_WORTH = 0.03


def in_micro_order(lowered: Graph, records: Mapping[str, int], in_parts: bool = False, any_rows: bool = False) -> Graph:
    """Return the graph in the order with the smallest arena; values are computed twice where that makes it smaller.

    Args:
        lowered: in program order.
        records: of a board, see `micro_arena`.
        in_parts: whether large values may be there some channels at a time.
        any_rows: whether the graph has to run on another number of rows than it has.
    """
    known: dict[tuple[Node, ...], int] = {}

    def memory(ordered: Graph) -> int:
        order = tuple(ordered.nodes)
        if order not in known:
            known[order] = arena_of(ordered, records).size
        return known[order]

    def scheduled(graph: Graph) -> Graph:
        return schedule(graph, memory, lambda node: False)

    again = recompute(lowered, _SMALLEST)
    tried = [lowered] if again is lowered else [lowered, again]
    best = min([scheduled(graph) for graph in tried], key=memory)
    for _ in range(_ROUNDS if in_parts else 0):
        enough = (1 - _WORTH) * memory(best)
        orders = [order for cut in _in_parts(best, any_rows) for order in (cut, by_growth(cut))]
        smallest = min((order for order in orders if _least(order, records) < enough), key=memory, default=best)
        if memory(smallest) > enough:
            break
        best = min(smallest, scheduled(smallest), key=memory)
    return best


def _least(ordered: Graph, records: Mapping[str, int]) -> int:
    """Return bytes that an arena has at the least, told quicker than how many it has."""
    results, most = sum(len(node.outputs) for node in ordered.nodes), most_at_once(with_int8_inputs(ordered))[0]
    return most + records["operator"] * len(ordered.nodes) + records["tensor"] * results


def _in_parts(ordered: Graph, any_rows: bool) -> Iterator[Graph]:
    """Yield the graph with a region of it in parts, by region and number of parts."""
    for region in _regions(ordered):
        if any_rows and not _is_for_any_rows(ordered, region):
            continue
        for count in _PARTS:
            cut = region_in_parts(ordered, region, -(-region.width // count)) if count <= region.width else None
            if cut is not None:
                yield cut


def _is_for_any_rows(ordered: Graph, region: Region) -> bool:
    """Return whether a region in parts takes any number of rows: nothing but constants is cut, no sum is in parts."""
    made = {node.output for node, along in region.nodes.items() if along.result is not None}
    cut = [
        value
        for node, along in region.nodes.items()
        for value, axis in zip(node.inputs, along.operands, strict=True)
        if axis is not None
    ]
    return all(value in made or value in ordered.constants for value in cut) and not any(
        along.result in (None, 0) or isinstance(node.op, Reshape) for node, along in region.nodes.items()
    )


def _regions(ordered: Graph) -> list[Region]:
    """Return what could be computed in parts with the largest values that are there when most is."""
    found: dict[frozenset[Node], Region] = {}
    total, there = most_at_once(with_int8_inputs(ordered))
    makers = ordered.producers()
    made = [value for value in there if value in makers]
    for value in made[:_TRIED]:
        for axis, size in enumerate(value.shape):
            region = region_of(ordered, value, axis) if size > 1 else None
            if region is not None and sum(v.type.nbytes for v in made if v in region.axes) > _SHARE * total:
                found.setdefault(frozenset(region.nodes), region)
    return list(found.values())
