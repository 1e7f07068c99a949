"""What a training step costs, counted from its lowered and scheduled graphs before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from converter.ir import Graph, Value
from converter.schedule import plan
from converter.tflite.export import with_variables

#: The signatures that make up a step.
STEP = ("train", "accumulate", "apply")


def costs(signatures: Mapping[str, Graph], micro_batches: int = 1) -> dict[str, int]:
    """Trained parameters, FLOPs by phase, residual bytes, predicted arena and state bytes of a training step.

    The arena is that of the interpreter's own kernels with the state in variables; see `converter.schedule.memory`.
    Accumulators of gradients count as state.

    Args:
        signatures: `train`, or `accumulate` and `apply`, among others.
        micro_batches: how often a step calls `accumulate`.
    """
    step = {name: graph for name, graph in signatures.items() if name in STEP}
    flops = dict.fromkeys(("forward", "backward", "update"), 0)
    for name, graph in step.items():
        for node in graph.nodes:
            types = tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
            calls = micro_batches if name == "accumulate" else 1
            flops[node.origin.phase] += calls * node.op.cost(*types).flops
    parameters = {p.name: p for graph in step.values() for p in graph.parameters.values()}.values()
    return {
        "trained_parameters": sum(p.value.size for p in parameters if p.kind == "weight"),
        "flops_forward": flops["forward"],
        "flops_backward": flops["backward"],
        "flops_update": flops["update"],
        "residual_bytes": sum(v.type.nbytes for graph in step.values() for v in residuals(graph)),
        "arena_bytes": sum(plan(with_variables(graph)).size for graph in step.values()),
        "state_bytes": sum(p.value.nbytes for p in parameters),
    }


def residuals(graph: Graph) -> list[Value]:
    """Forward values that the backward pass reads: what training keeps beyond inference."""
    made = {v for n in graph.nodes if n.origin.phase == "forward" for v in n.outputs} | set(graph.inputs)
    read = dict.fromkeys(v for n in graph.nodes if n.origin.phase != "forward" for v in n.inputs)
    return [v for v in read if v in made]
