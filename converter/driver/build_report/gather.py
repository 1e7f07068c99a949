"""Collects the build record from the graphs of a build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from converter.backend import schedule
from converter.backend.costs.step_cost import operator_cost
from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.state import AS_ARGUMENTS, with_variables
from converter.backend.targets import Target
from converter.driver.build_report.record import KINDS, Account, MemoryRecord, ModelPart, RecordedCall
from converter.ir import Graph, Value
from converter.program.manifest import called_by_step
from converter.support.notes import Note


def account_of(
    model: Graph,
    signatures: Mapping[str, Graph],
    exported: Mapping[str, Graph],
    target: Target,
    state: str,
    forms: Sequence[FormChoice],
    notes: Sequence[Note],
) -> Account:
    """Looks at a finished build.

    Args:
        model: the imported forward graph.
        signatures: lowered, scheduled graphs before their state is exported.
        exported: the graphs of the file.
        target: that these were lowered for.
        state: `variables`, `stateless` or `split`.
        forms: that were chosen for the step.
        notes: what the user is to know.
    """
    export = AS_ARGUMENTS.get(state, with_variables)
    in_order = schedule.keeps_order(signatures.values(), state)
    calls = {
        name: _call(export(signatures[name]), exported[name], target, in_order) for name in called_by_step(signatures)
    }
    weights = {p.name: p.model_value.shape for p in model.parameters.values()}
    trainable = sum(p.model_value.size for p in model.parameters.values() if p.trainable and not p.idle)
    return Account(weights, trainable, tuple(parts(model)), calls, tuple(forms), tuple(notes))


def _call(graph: Graph, exported: Graph, target: Target, in_order: bool) -> RecordedCall:
    """`graph` is what the costs of a program are counted of.

    The file holds a few operators more at its end, which copy results and clear accumulators: no FLOPs.
    """
    known = schedule.known_when_loaded(exported)
    run = schedule.timeline(graph, target.lanes, in_order)
    more = range(len(graph.nodes), len(exported.nodes))
    order = [*run.order, *more]
    pieces = run.pieces
    return RecordedCall(
        (*_flops(graph), *(0 for _ in more)),
        tuple(round(operator_cost(known, node, target)) for node in exported.nodes),
        () if order == sorted(order) else tuple(order),
        (*(-1 if number is None else number for number in run.partitions), *(-1 for _ in more)),
        MemoryRecord(
            tuple(p.nbytes for p in pieces),
            tuple(p.first for p in pieces),
            tuple(p.last for p in pieces),
            tuple(-1 if p.maker is None else p.maker for p in pieces),
            tuple(KINDS.index(p.kind) for p in pieces),
            run.planned.arena,
            run.planned.workspace,
        ),
    )


def _flops(graph: Graph) -> list[int]:
    types = ((n.op, tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs)) for n in graph.nodes)
    return [op.cost(inputs, outputs).flops for op, inputs, outputs in types]


def parts(model: Graph) -> list[ModelPart]:
    """Return the model by layer: neighbouring operations of one layer are a part, so that parts form no circle."""
    weights: dict[Value, tuple[str, ...]] = {v: (p.name,) for v, p in model.parameters.items()}
    weights |= dict.fromkeys(model.constants, ())
    inputs = {v: v.name for v in model.inputs}
    results: dict[Value, list[str]] = {}
    for name, value in model.outputs.items():
        results.setdefault(value, []).append(name)
    runs: list[tuple[str, list]] = []
    for node in model.nodes:
        if node.inputs and all(v in weights for v in node.inputs):  # a weight in another shape
            of = tuple(dict.fromkeys(name for v in node.inputs for name in weights[v]))
            weights |= dict.fromkeys(node.outputs, of)
        elif runs and node.origin.layer in ("", runs[-1][0]):
            runs[-1][1].append(node)
        else:
            runs.append((node.origin.layer, [node]))
    found, maker = [], dict[Value, int]()
    for place, (layer, nodes) in enumerate(runs):
        made = {v for node in nodes for v in node.outputs}
        read = dict.fromkeys(v for node in nodes for v in node.inputs)
        types = [(n.op, tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs)) for n in nodes]
        found.append(
            ModelPart(
                layer,
                dict(Counter(node.op.name for node in nodes)),
                str(nodes[-1].outputs[0].type),
                tuple(sorted({maker[v] for v in read if v in maker})),
                tuple(inputs[v] for v in read if v in inputs),
                tuple(name for v in made for name in results.get(v, ())),
                tuple(dict.fromkeys(name for v in read for name in weights.get(v, ()))),
                sum(op.cost(ins, outs).flops for op, ins, outs in types),
            )
        )
        maker |= dict.fromkeys(made, place)
    return found
