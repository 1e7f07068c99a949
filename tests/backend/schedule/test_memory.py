"""The planner on graphs made by hand."""

import pytest

from converter.backend import builtins as tfl
from converter.backend.schedule import check_no_overlap, plan
from converter.backend.schedule.memory import Allocation, ArenaPlan
from converter.ir import Builder, TensorType


def test_an_overlap_is_found() -> None:
    b = Builder()
    x, y = b.input("x", TensorType((4,))), b.input("y", TensorType((4,)))
    pieces = {x: Allocation(0, 16, 0, 3, "x"), y: Allocation(8, 16, 2, 5, "y")}
    with pytest.raises(AssertionError, match="overlap"):
        check_no_overlap(ArenaPlan(pieces, (), 24))
    check_no_overlap(ArenaPlan(pieces | {y: Allocation(8, 16, 4, 5, "y")}, (), 24))


def test_a_chain_reuses_two_buffers() -> None:
    """Ops that cannot write in place: two tensors alive at a time, whatever the length; inputs and outputs stay."""
    b = Builder()
    x = b.input("x", TensorType((256,)))
    value = x
    for _ in range(6):
        value = b(tfl.Tanh(), value)
    b.graph.outputs["y"] = value
    assert plan(b.graph).size == 3 * 1024


def test_in_place_ops_share_a_buffer_with_an_operand_that_dies() -> None:
    b = Builder()
    x = b.input("x", TensorType((256,)))
    first = b(tfl.Tanh(), x)
    b.graph.outputs["y"] = b(tfl.Tanh(), b(tfl.Add(), first, x))
    assert plan(b.graph).size == 3 * 1024, "x, first = sum, and y"
    b.graph.outputs["z"] = first
    assert plan(b.graph).size == 4 * 1024, "first is read again: no sharing"


def test_scratch_counts_while_its_node_runs() -> None:
    b = Builder()
    x, w = b.input("x", TensorType((8, 16))), b.input("w", TensorType((16, 8)))
    b.graph.outputs["y"] = b(tfl.BatchMatmul(), x, w)
    arena = plan(b.graph)
    assert sorted(piece.size for piece in arena.scratch) == [512, 512]
    assert arena.size == 2 * 512 + 256 + 2 * 512
    check_no_overlap(arena)
    assert {piece.name for piece in arena.alive_at_peak()} >= {"x", "w"}
