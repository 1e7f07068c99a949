"""The last stages on graphs: builtin operators, their order, and what is computed twice."""

from __future__ import annotations

from dataclasses import replace

from converter.errors import UnsupportedError, UnsupportedSite
from converter.ir import Graph, Node, nested
from converter.passes import fold_constants, map_bodies, merge_common_subexpressions, split_loops
from converter.schedule import how, recompute, schedule, transient
from converter.targets import Target
from converter.tflite import avoid
from converter.tflite.export import with_variables
from converter.tflite.forms import FormChoice
from converter.tflite.fuse import fuse
from converter.tflite.lower import lower
from converter.tflite.merge_axes import with_fewer_axes
from converter.tflite.wide_pixels import with_wide_pixels

_ADVICE = "Compute it with fewer axes or in float32, or build for a newer runtime or the CPU."
#: Share of the arena that computing values again must save.
WORTH_RECOMPUTING = 0.03


def in_order(lowered: Graph, target: Target) -> Graph:
    """Scheduled; with cheap values computed twice where that needs clearly less memory."""
    lowered = map_bodies(lowered, lambda body: in_order(body, target))

    def memory(ordered: Graph) -> int:
        return transient(with_variables(ordered), target.lanes)

    def stays(node: Node) -> bool:
        return how(lowered, node, target.lanes) is None

    kept, lean = schedule(lowered, memory, stays), recompute(lowered)
    if lean is lowered:
        return kept
    lean = schedule(lean, memory, stays)
    return lean if memory(lean) < (1 - WORTH_RECOMPUTING) * memory(kept) else kept


def to_builtins(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    """Lowered and fused, in program order. Raises UnsupportedError for what the target's runtime has no kernel of."""
    lowered = avoid.without(_lowered(graph, target, report), target.avoids)
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
    """The target of what the CPU computes beside an engine: but for the shapes of the state, as if there were none."""
    return replace(target, avoids=[name for name in target.avoids if name == avoid.ranks.NAME])


def check_limits(lowered: Graph, target: Target) -> None:
    """Raises UnsupportedError naming each layer whose operators the target's runtime lacks or computes wrongly."""
    sites: dict[UnsupportedSite, None] = {}
    for graph in nested(lowered):
        untrusted = dict(avoid.left(graph, target.avoids))
        for node in graph.nodes:
            operands, results = ([v.type for v in values] for values in (node.inputs, node.outputs))
            of = f"{node.op.code} of {', '.join(map(str, operands or results))}"
            if not target.takes(node.op.code, operands, results):
                sites[_site(node, f"{target.name} has no {of}")] = None
            elif node in untrusted:
                sites[_site(node, f"{target.name} cannot be trusted with {of} ({untrusted[node].why})")] = None
    if sites:
        listed = "".join(f"\n  {site.layer or '(compiler)'}: {site.reason}" for site in sites)
        raise UnsupportedError(f"The runtime lacks operators that this program needs:{listed}\n{_ADVICE}", sites)


def _lowered(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    lowered = _tidied(with_fewer_axes(lower(split_loops(graph), target, report), target))
    return with_wide_pixels(lowered, target, report)


def _site(node: Node, said: str) -> UnsupportedSite:
    return UnsupportedSite(node.op.code, node.origin.layer, node.origin.source, said, _ADVICE)


def _tidied(lowered: Graph) -> Graph:
    return fuse(merge_common_subexpressions(fold_constants(map_bodies(lowered, _tidied))))
