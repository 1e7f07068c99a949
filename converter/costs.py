"""What a training step costs, counted from its lowered and scheduled graph before anything runs."""

from __future__ import annotations

from converter.ir import Graph, Value
from converter.schedule import plan
from converter.tflite.export import with_variables


def costs(train: Graph) -> dict[str, int]:
    """Trained parameters, FLOPs by phase, residual bytes, predicted arena and state bytes of a training step.

    The arena is that of the interpreter's own kernels with the state in variables; see `converter.schedule.memory`.
    """
    flops = dict.fromkeys(("forward", "backward", "update"), 0)
    for node in train.nodes:
        types = tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
        flops[node.origin.phase] += node.op.cost(*types).flops
    trained = [p for p in train.parameters.values() if not p.is_slot]
    return {
        "trained_parameters": sum(p.value.size for p in trained),
        "flops_forward": flops["forward"],
        "flops_backward": flops["backward"],
        "flops_update": flops["update"],
        "residual_bytes": sum(v.type.nbytes for v in residuals(train)),
        "arena_bytes": plan(with_variables(train)).size,
        "state_bytes": sum(v.type.nbytes for v in train.parameters),
    }


def residuals(graph: Graph) -> list[Value]:
    """Forward values that the backward pass reads: what training keeps beyond inference."""
    made = {v for n in graph.nodes if n.origin.phase == "forward" for v in n.outputs} | set(graph.inputs)
    read = dict.fromkeys(v for n in graph.nodes if n.origin.phase != "forward" for v in n.inputs)
    return [v for v in read if v in made]
