"""RAM of a training step on a microcontroller, counted from its lowered and scheduled graphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from converter.backend.schedule.micro_graph import arena_of
from converter.backend.targets import Target
from converter.ir import Graph
from converter.program.manifest import at_length

#: What is computed once of a row by what is frozen in front, and what a step on that is called behind its own name.
_FEATURES, _ON_FEATURES = "features", "_features"


def called_on_a_board(signatures: Mapping[str, Graph], step: Collection[str]) -> dict[str, Graph]:
    """Return the signatures that a step is made of in C++: where there is one on features, it and what gives them."""
    on_features = {name for name in signatures if name.removesuffix(_ON_FEATURES) in step and name not in step}
    if _FEATURES not in signatures or not on_features:
        return {name: graph for name, graph in signatures.items() if at_length(name)[0] in step}
    return {name: graph for name, graph in signatures.items() if name in {_FEATURES, "apply", *on_features}}


def micro_resident(
    step: Mapping[str, Graph], state_bytes: int, micro_batches: int, target: Target, state: str
) -> dict[str, int]:
    """Return the RAM of a step in TensorFlow Lite Micro, each signature in a file of its own that lies in flash.

    Args:
        step: the lowered, scheduled graphs that a step calls (`called_on_a_board`), before the state is exported.
        state_bytes: what the program keeps.
        micro_batches: in how many parts a step takes its rows.
        target: with the sizes of the runtime's records.
        state: `stateless` or `split`.

    Returns:
        `resident_bytes`, the sum of its parts:
        `arena_bytes`: the largest arena that a signature of the step needs, the state that goes in and out in it;
        signatures that are not called at once may share one. It is that of a board, whose pointers have four bytes; in
        the wheel records are larger.
        `state_bytes`: the state as the sketch keeps it between calls, and features of a step's rows.
        `packed_bytes`, `mapped_bytes`: none; constants are read where they lie in flash.
    """
    arena = max(arena_of(graph, target.records["board"], state).size for graph in step.values())
    if _FEATURES in step:
        state_bytes += micro_batches * sum(value.type.nbytes for value in step[_FEATURES].outputs.values())
    parts = {"arena_bytes": arena, "state_bytes": state_bytes, "packed_bytes": 0, "mapped_bytes": 0}
    return {"resident_bytes": sum(parts.values()), **parts}
