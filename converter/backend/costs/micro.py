"""RAM of a training step on a microcontroller, counted from its lowered and scheduled graphs."""

from __future__ import annotations

from collections.abc import Sequence

from converter.backend.schedule.micro_graph import arena_of
from converter.backend.targets import Target
from converter.ir import Graph


def micro_resident(step: Sequence[Graph], state_bytes: int, target: Target, state: str) -> dict[str, int]:
    """Return the RAM of a step in TensorFlow Lite Micro, each signature in a file of its own that lies in flash.

    Args:
        step: the lowered, scheduled graphs that a step calls, before the state is exported.
        state_bytes: what the program keeps.
        target: with the sizes of the runtime's records.
        state: `stateless` or `split`.

    Returns:
        `resident_bytes`, the sum of its parts:
        `arena_bytes`: the largest arena that a signature of the step needs, the state that goes in and out in it;
        signatures that are not called at once may share one. It is that of a board, whose pointers have four bytes; in
        the wheel records are larger.
        `state_bytes`: the state as the sketch keeps it between calls.
        `packed_bytes`, `mapped_bytes`: none; constants are read where they lie in flash.
    """
    arena = max(arena_of(graph, target.records["board"], state).size for graph in step)
    parts = {"arena_bytes": arena, "state_bytes": state_bytes, "packed_bytes": 0, "mapped_bytes": 0}
    return {"resident_bytes": sum(parts.values()), **parts}
