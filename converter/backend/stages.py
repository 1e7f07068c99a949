"""Backend: lowering to builtins, peephole rewriting, scheduling and recomputation, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from converter.backend import legalize as avoid
from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.lower import lower
from converter.backend.lowering.state import with_variables
from converter.backend.peephole.flat_rows import contracted_as_rows
from converter.backend.peephole.fuse import fuse
from converter.backend.peephole.masks import without_clamps
from converter.backend.peephole.merge_axes import with_fewer_axes
from converter.backend.peephole.products import smallest_products
from converter.backend.peephole.repeated import without_repeats
from converter.backend.peephole.transposed import transposed_as_integers, transposed_once
from converter.backend.peephole.wide_pixels import with_wide_pixels
from converter.backend.schedule import Bound, how, outlined, packed, recompute, schedule, segmented, tables, transient
from converter.backend.schedule.micro_order import in_micro_order
from converter.backend.schedule.overwriting import without_overwriting
from converter.backend.schedule.saved_masks import masks_in_int8
from converter.backend.targets import Target
from converter.ir import Graph, Node, TensorType
from converter.passes import fold_constants, map_bodies, merge_common_subexpressions, split_loops
from converter.support.errors import UnsupportedError, UnsupportedSite

_BY_OTHERS = "compute it by other operators"
_OTHERWISE = "build for a newer runtime or the CPU."
#: Share of the arena that operators must save which are there for nothing else.
WORTH_OPERATORS = 0.03
#: The same of a part of each block that is computed a third time, as an attention is.
WORTH_A_THIRD_TIME = 0.15


def in_order(
    lowered: Graph, target: Target, again: bool = False, in_parts: bool = False, any_rows: bool = False
) -> Graph:
    """Scheduled; with masks as int8, and cheap values computed twice, where each needs clearly less memory.

    Args:
        lowered: in program order.
        target: the runtime that it is for.
        again: with most of the forward pass computed twice where that needs less, with the constants packed for it.
        in_parts: for a microcontroller, with large values some channels at a time where that needs less.
        any_rows: whether the graph is exported for any number of rows.
    """
    lowered = map_bodies(lowered, lambda body: in_order(body, target))
    if target.is_micro:
        ordered = in_micro_order(transposed_as_integers(lowered), target.records["board"], in_parts, any_rows)
        return without_overwriting(ordered, stateless=True)

    known: dict[tuple[Node, ...], int] = {}

    def memory(ordered: Graph) -> int:
        order = tuple(ordered.nodes)
        if order not in known:
            known[order] = transient(with_variables(ordered), target.lanes)
        return known[order]

    def in_all(ordered: Graph) -> int:
        whole = with_variables(ordered)
        return memory(ordered) + packed(whole, target.lanes) + tables(whole, target.lanes)

    def in_pieces(ordered: Graph) -> Graph:
        pieces = (ordered, outlined(ordered)) if target.is_cpu else (ordered,)
        return min(pieces, key=in_all)  # what crosses the borders of pieces lives longer

    def scheduled(graph: Graph) -> Graph:
        runs = {node: how(graph.constants, node, target.lanes) for node in graph.nodes}
        return schedule(graph, memory, lambda node: runs[node] is None, Bound(graph, runs), again)

    def needs(ordered: Graph) -> int:
        return memory(ordered) + packed(with_variables(ordered), target.lanes)

    best, lean = scheduled(lowered), lowered
    # XNNPACK of TFLite 2.16 reads what QUANTIZE scales by as if it were aligned: on AVX-512 that may end the process.
    for leaner in (masks_in_int8, recompute) if target.is_newest else (recompute,):
        if (graph := leaner(lean)) is not lean:
            smaller = scheduled(graph)
            if memory(smaller) < (1 - WORTH_OPERATORS) * memory(best):
                best, lean = smaller, graph
    if again:
        best = _by_segments(lowered, best, lambda graph: scheduled(recompute(graph)), needs, memory, in_pieces, in_all)
        best = map_bodies(best, without_overwriting) if target.is_cpu else best
    return without_overwriting(best)


def _by_segments(
    lowered: Graph,
    plain: Graph,
    scheduled: Callable[[Graph], Graph],
    needs: Callable[[Graph], int],
    memory: Callable[[Graph], int],
    in_pieces: Callable[[Graph], Graph],
    in_all: Callable[[Graph], int],
) -> Graph:
    """Return the graph with most of its forward pass computed twice, parts of it thrice where that needs much less.

    Args:
        lowered: in program order.
        plain: scheduled, with nothing computed again.
        scheduled: returns a graph in the best order.
        needs: bytes that a run of one takes, and what is packed when it is loaded.
        memory: those of a run alone.
        in_pieces: returns a graph whose pieces that are alike share a body, where it takes less so.
        in_all: `needs`, and the runtime's tables.
    """
    found = [(scheduled(segments.graph()), segments) for segments in segmented(lowered)]
    if not found:
        return in_pieces(plain)
    twice, segments = min(found, key=lambda one: needs(one[0]))
    best = min(plain, twice, key=needs)
    thrice = scheduled(segments.graph(cut_once_more=True))
    if cut_once_more := memory(thrice) < (1 - WORTH_A_THIRD_TIME) * memory(best):
        best = thrice
    best, together = in_pieces(best), 2
    # Several segments together are alike less often than one, and bodies are objects of the runtime: all of it counts.
    while segments.kept(together // 2) - segments.kept(together) > WORTH_A_THIRD_TIME * in_all(best):
        thrice = in_pieces(scheduled(segments.graph(cut_once_more, together)))
        if in_all(thrice) >= (1 - WORTH_A_THIRD_TIME) * in_all(best):
            break
        best, together = thrice, 2 * together
    return best


def to_builtins(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    """Lowered and fused, in program order. Raises UnsupportedError for what the target's runtime has no kernel of."""
    lowered = avoid.without(avoid.within_ranks(_lowered(graph, target, report)), target.avoids)
    if target.is_micro:
        lowered = without_repeats(map_bodies(lowered, fuse))  # what stands for a product may take its bias
    check_limits(lowered, target)
    return lowered


def raised(graph: Graph, target: Target) -> dict[str, float]:
    """By layer, the least constant that keeps a number from zero, where the engine has another one in its place."""
    found: dict[str, float] = {}
    if avoid.constants.HALF in target.avoids:
        lowered = _lowered(graph, target)
        for node, _ in avoid.left(lowered, [avoid.constants.HALF]):
            arrays = [lowered.constants[v] for v in node.inputs if v in lowered.constants]
            least = min(float(array.min()) for array in arrays if avoid.constants.vanishes(array))
            found[node.origin.layer] = min(least, found.get(node.origin.layer, least))
    return found


def beside_engine(target: Target) -> Target:
    """Return the target of what the CPU computes beside an engine: but for the shapes of the state, as without one."""
    return replace(target, avoids=[name for name in target.avoids if name == avoid.ranks.NAME])


def check_limits(lowered: Graph, target: Target) -> None:
    """Raises UnsupportedError naming each layer whose operators the target's runtime lacks or computes wrongly."""
    if found := dict(_lacking(lowered, target, "")):
        listed = "".join(f"\n  {site.layer or '(compiler)'}: {site.reason}" for site in found)
        advice = _sentence(dict.fromkeys(found.values()))
        raise UnsupportedError(
            f"The runtime lacks operators that this program needs:{listed}\n{advice}", found, page="targets"
        )


def _lacking(graph: Graph, target: Target, around: str) -> Iterator[tuple[UnsupportedSite, str]]:
    """Yield what the runtime lacks, with what to do about it; `around` is the layer of the loop that runs the graph."""
    untrusted = dict(avoid.left(graph, target.avoids))
    for node in graph.nodes:
        code, layer = node.op.code, node.origin.layer or around
        operands, results = [v.type for v in node.inputs], [v.type for v in node.outputs]
        if not target.takes(code, operands, results):
            way, reason = _way(target, code, operands, results), f"{target.name} has no {_said(node)}"
        elif node in untrusted:
            way, reason = _BY_OTHERS, f"{target.name} cannot be trusted with {_said(node)} ({untrusted[node].why})"
        else:
            for body in node.op.bodies():
                yield from _lacking(body, target, layer)
            continue
        yield UnsupportedSite(code, layer, node.origin.source, reason, _sentence([way])), way


def _said(node: Node) -> str:
    return f"{node.op.code} of {', '.join(str(v.type) for v in node.inputs or node.outputs)}"


def _way(target: Target, code: str, operands: Sequence[TensorType], results: Sequence[TensorType]) -> str:
    """Return what to do about a builtin that the runtime lacks for such types."""
    ways: tuple[tuple[str, Callable[[TensorType], TensorType]], ...] = (
        ("compute it with fewer axes", lambda t: TensorType((1,), t.dtype)),
        ("compute it in float32", lambda t: TensorType(t.shape)),
        ("compute it in float32 with fewer axes", lambda t: TensorType((1,))),
    )
    for way, changed in ways:
        if target.takes(code, [*map(changed, operands)], [*map(changed, results)]):
            return way
    return "unroll the loop" if code == "WHILE" else _BY_OTHERS


def _sentence(ways: Iterable[str]) -> str:
    said = ", ".join([*ways, f"or {_OTHERWISE}"])
    return said[0].upper() + said[1:]


def _lowered(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    lowered = _tidied(with_fewer_axes(lower(split_loops(graph), target, report), target))
    if target.is_micro:
        return merge_common_subexpressions(smallest_products(lowered), lambda op: op.copies())
    if not target.is_cpu:
        return lowered
    # Engines of accelerators have their own ways to repeat operands, not all of them right, and compute in float16.
    by_rows = merge_common_subexpressions(contracted_as_rows(smallest_products(lowered)), lambda op: op.copies())
    return transposed_once(with_wide_pixels(without_clamps(by_rows, target), target, report))


def _tidied(lowered: Graph) -> Graph:
    return fuse(merge_common_subexpressions(fold_constants(map_bodies(lowered, _tidied)), lambda op: op.copies()))
