"""Static costs of a training step, counted from its lowered and scheduled graphs before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from converter.backend import schedule
from converter.backend.costs.micro import called_on_a_board, micro_resident
from converter.backend.costs.step_cost import product_cost, step_cost, step_traffic
from converter.backend.lowering.state import AS_ARGUMENTS, with_variables
from converter.backend.targets import Target
from converter.ir import Graph, Value, fingerprint, nested, stored_bytes
from converter.ir.described import is_uniform
from converter.program.flatbuffer.buffers import parts_of
from converter.program.manifest import STEP, at_length, called_by_step

#: Bytes of a file for an operator and its tensors, on the average.
_TABLES = 250


def costs(signatures: Mapping[str, Graph], target: Target, state: str, micro_batches: int = 1) -> dict[str, int]:
    """Trained parameters, FLOPs by phase, cost, traffic and residuals of a training step, and what `resident` says.

    `read_bytes` are those of constants that are read where they lie in the file, at each use: from flash, where they
    do not stay in memory. `labels` are those of whole numbers, as the tokens of a language model, and else the rows.

    Accumulators of gradients count as state. `step_cost`, and what of it multiplies and adds, `product_cost`, are in
    the unit of the target's table.

    Args:
        signatures: `train`, or `accumulate` or `gradients` and `apply`, among others.
        target: as for `resident`.
        state: as for `resident`.
        micro_batches: in how many parts a step takes its rows.
    """
    step = {name: schedule.in_one(signatures[name]) for name in called_by_step(signatures)}
    calls = {name: 1 if name == "apply" else micro_batches for name in step}
    flops = dict.fromkeys(("forward", "backward", "update"), 0)
    for name, graph in step.items():
        for node in graph.nodes:
            types = tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
            flops[node.origin.phase] += calls[name] * node.op.cost(*types).flops
    weights = {p.name: v.type for graph in step.values() for v, p in graph.weights().items()}
    return {
        "trained_parameters": sum(type.size for type in weights.values()),
        "flops_forward": flops["forward"],
        "flops_backward": flops["backward"],
        "flops_update": flops["update"],
        "step_cost": sum(calls[name] * step_cost(graph, target) for name, graph in step.items()),
        "product_cost": sum(calls[name] * product_cost(graph, target) for name, graph in step.items()),
        "traffic_bytes": sum(calls[name] * step_traffic(graph, target) for name, graph in step.items()),
        "read_bytes": sum(calls[name] * _read(graph) for name, graph in step.items()),
        "labels": sum(calls[name] * _labels(graph) for name, graph in step.items()),
        "residual_bytes": sum(v.type.nbytes for graph in step.values() for v in residuals(graph)),
        **resident(signatures, target, state, micro_batches),
    }


def resident(
    signatures: Mapping[str, Graph], target: Target, state: str = "variables", micro_batches: int = 1
) -> dict[str, int]:
    """Predicted resident memory of a session that trains: XNNPACK at work, one thread, the file mapped.

    Args:
        signatures: the lowered, scheduled graphs of all signatures that the file holds, before the state is exported.
        target: for the widths of its kernels.
        state: `variables`, `stateless` or `split`.
        micro_batches: in how many parts a step takes its rows.

    Returns:
        `resident_bytes`, the sum of its parts, on a microcontroller those of `micro_resident`:
        `arena_bytes`: what runs of the signatures that a step calls need: the runtime's arenas, and XNNPACK's
        workspace, which all signatures share. Other signatures take an arena when they are first called.
        `state_bytes`: trained tensors and slots of the optimizer.
        `packed_bytes`: constants as XNNPACK lays them out when the program is loaded, again for each use in each
        signature of the file, called or not (a session with a `weight_cache` has them once, in a file instead); and
        what the interpreter keeps for each operator.
        `mapped_bytes`: the file, which the system may drop and share between processes; the rest is
        anonymous memory.
    """
    parameters = {p.name: v for graph in signatures.values() for v, p in graph.parameters.items()}
    kept = sum(v.type.nbytes for v in parameters.values())
    if target.records:
        return micro_resident(called_on_a_board(signatures, STEP), kept, micro_batches, target, state)
    export = AS_ARGUMENTS.get(state, with_variables)
    in_order = schedule.keeps_order(signatures.values(), state)
    graphs = {name: schedule.resident(export(graph), target.lanes, in_order) for name, graph in signatures.items()}
    step = called_by_step(signatures)
    called = [graph for name, graph in graphs.items() if at_length(name)[0] in step]
    arena = sum(graph.arena for graph in called) + max(graph.workspace for graph in called)
    parts = {
        # Stateless, the state lies in the arena, as inputs.
        "arena_bytes": arena if state == "variables" else arena - kept,
        "state_bytes": kept,
        "packed_bytes": sum(graph.packed for graph in graphs.values()),
        "mapped_bytes": _mapped(signatures, target.is_newest),
    }
    return {"resident_bytes": sum(parts.values()), **parts}


def residuals(graph: Graph) -> list[Value]:
    """Forward values that the backward pass reads: what training keeps beyond inference."""
    known = schedule.known_when_loaded(graph)
    made = {v for n in graph.nodes if not n.origin.is_late for v in n.outputs if v not in known} | set(graph.inputs)
    read = dict.fromkeys(v for n in graph.nodes if n.origin.is_late for v in n.inputs)
    return [v for v in read if v in made]


def _read(graph: Graph) -> int:
    """Return the bytes of the file that one run reads where they are mapped."""
    contracted = [v for n in graph.nodes if n.op.copies() for v in n.inputs if v in graph.constants]
    return sum(stored_bytes(v.type.size, v.dtype) for v in contracted)


def _labels(graph: Graph) -> int:
    """Return how many labels one run takes; of several outputs those of the one with most."""
    targets = [v for v in graph.inputs if v.name == "y" or v.name.startswith("y/")]
    return max((v.type.size if v.dtype.kind == "i" else v.shape[0] for v in targets), default=0)


def _mapped(signatures: Mapping[str, Graph], shares: bool) -> int:
    """Return the bytes of the file, which holds each different tensor once, and parts of one with it if it `shares`."""
    graphs = [inner for graph in signatures.values() for inner in nested(graph)]
    arrays = [array for graph in graphs for array in graph.constants.values()]
    different = {(fingerprint(array), stored_bytes(array.size, array.dtype)): array for array in arrays}
    within = parts_of(list(different.values())) if shares else {}
    stored = {what for number, what in enumerate(different) if number not in within}
    parameters = {id(p): p for graph in signatures.values() for p in graph.parameters.values()}.values()
    for array in (p.value for p in parameters):  # in the layout of the file: one at a time
        if not is_uniform(array):
            stored.add((fingerprint(array), array.nbytes))
    operators = sum(len(graph.nodes) for graph in graphs)
    return sum(nbytes for _, nbytes in stored) + _TABLES * operators
