"""Arena that a lowered graph needs in TensorFlow Lite Micro, where the state goes in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from converter.backend.builtins import Quantize
from converter.backend.emit.emit import Subgraph, emit
from converter.backend.lowering.state import AS_ARGUMENTS, with_own_results
from converter.backend.schedule.micro_arena import MicroArena, micro_arena
from converter.ir import Graph, Value


def arena_of(graph: Graph, records: Mapping[str, int], state: str = "stateless") -> MicroArena:
    """Return the arena of a graph in the order in which its nodes stand, before its state is exported.

    Args:
        graph: lowered.
        records: see `micro_arena`.
        state: `stateless` or `split`.
    """
    exported = with_own_results(AS_ARGUMENTS[state](graph))
    return _arena(exported, micro_numbering(exported, records), records)


def with_int8_inputs(exported: Graph) -> Graph:
    """Return the graph as `export-c` has it: of inputs whose only reader makes int8 of them the session gives these.

    Before: x float32; q = Quantize(x); y = Conv2D(q).   After: q int8; y = Conv2D(q).
    """
    readers, results = exported.consumers(), set(exported.results())
    made = {
        value: readers[value][0]
        for value in exported.inputs
        if len(readers.get(value, ())) == 1 and isinstance(readers[value][0].op, Quantize) and value not in results
    }
    graph = exported.copy()
    graph.inputs = [made[value].output if value in made else value for value in exported.inputs]
    graph.nodes = [node for node in exported.nodes if node not in made.values()]
    return graph


def micro_numbering(exported: Graph, records: Mapping[str, int]) -> list[Value]:
    """Return what the nodes make, in the order in which the file is to number it.

    Of tensors of one size the planner places those with the highest numbers first. Those that begin first, or end last:
    whichever needs less.
    """
    made = [value for node in exported.nodes for value in node.outputs]
    last = {value: i for i, node in enumerate(exported.nodes) for value in node.inputs}
    last |= dict.fromkeys(exported.outputs.values(), len(exported.nodes))
    by_end = sorted(made, key=lambda value: last.get(value, 0))
    return min((made[::-1], by_end), key=lambda numbered: _arena(exported, numbered, records).size)


def _arena(exported: Graph, numbered: Sequence[Value], records: Mapping[str, int]) -> MicroArena:
    short = with_int8_inputs(exported)
    numbered = [value for value in numbered if value not in short.inputs]
    # Constants lie in flash: their bytes are none of an arena's.
    short.constants = {value: np.zeros(1, value.dtype) for value in short.constants}
    return micro_arena(
        emit([Subgraph("step", short)], {}, "", numbered=lambda g: numbered if g is short else ()), records
    )
