"""Runs of alike pieces are found where they are, and only what one subgraph can run is alike."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.schedule import outline
from converter.backend.schedule.alike import Run, runs
from converter.ir import Builder, Graph, TensorType, Value
from converter.ir.evaluate import evaluate_outputs
from converter.ir.types import INT4

#: Elements, and blocks.
SIZE, BLOCKS = 8, 5


def block(b: Builder, x: Value, weights: np.ndarray, skipped: Value) -> Value:
    """Six nodes: 24 bytes more cross inside of it than at its end."""
    left, right = b(tfl.Exp(), x), b(tfl.Tanh(), x)
    contracted = b(tfl.BatchMatmul(), left, b(tfl.CastWeight(), b.constant(weights)))
    return b(tfl.Add(), b(tfl.Mul(), contracted, right), skipped)


def graph_of(kind: str) -> Graph:
    """Return blocks in a row behind and before other nodes."""
    rng = np.random.default_rng(0)
    b = Builder()
    first = x = b(tfl.Sqrt(), b.input("x", TensorType((1, SIZE))))
    for i in range(BLOCKS):
        skipped = first if kind == "skips" and i == 1 else x
        x = block(b, x, rng.standard_normal((SIZE, SIZE)).astype(np.float32), skipped)
        if kind == "odd" and i == 1:
            x = b(tfl.Neg(), x)
        if kind == "seen" and i == 2:
            b.graph.outputs["seen"] = b.graph.nodes[-2].output
    b.graph.outputs["y"] = b(tfl.Rsqrt(), x)
    return b.graph


def found(graph: Graph, shortest: int = 4, saved: int = 4) -> list[Run]:
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.inputs}
    change = [0] * (len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        change[i + 1] += node.output.type.nbytes
        change[last.get(node.output, i) + 1] -= node.output.type.nbytes
    return runs(graph, graph.nodes, shortest, saved, list(accumulate(change)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", [Run(1, 6, 5)]),
        ("odd", [Run(14, 6, 3)]),
        ("skips", [Run(1, 6, 5)]),  # one block reads of another than the one before it: an operand as any
        ("seen", [Run(1, 6, 2), Run(19, 6, 2)]),
    ],
)
def test_runs_are_of_whole_blocks(kind: str, expected: list[Run]) -> None:
    assert found(graph_of(kind)) == expected


def test_a_constant_that_a_kernel_knows_tells_blocks_apart() -> None:
    b = Builder()
    x = b.input("x", TensorType((1, SIZE)))
    for i in range(BLOCKS):
        x = b(tfl.Exp(), b(tfl.Tanh(), x))
        x = b(tfl.FullyConnected(), b(tfl.Neg(), x), b.constant(np.full((SIZE, SIZE), max(i, 2), np.float32)))
    b.graph.outputs["y"] = x
    assert found(b.graph) == [Run(0, 4, 3)]


def test_what_is_short_or_saves_little_is_none() -> None:
    assert not found(graph_of("plain"), shortest=7)
    assert not found(graph_of("plain"), saved=25)


def test_weights_of_mixed_types_make_one_run_and_a_subgraph_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in files whose values and down projections have more bits in some of the layers."""
    int8 = np.dtype(np.int8)
    stored = [int8, int8, INT4, int8, INT4]
    rng, b = np.random.default_rng(0), Builder()
    x = b(tfl.Sqrt(), b.input("x", TensorType((1, SIZE))))
    for dtype in stored:
        x = block(b, x, rng.integers(-7, 8, (SIZE, SIZE)).astype(dtype), x)
    b.graph.outputs["y"] = b(tfl.Rsqrt(), x)
    assert found(b.graph) == [Run(1, 6, len(stored))]
    monkeypatch.setattr(outline, "LONGEST", 0)
    monkeypatch.setattr(outline, "SHORTEST_ALIKE", 4)
    monkeypatch.setattr(outline, "SAVED", 4)
    pieces = outline.outlined(b.graph)
    bodies = [node.op.body for node in pieces.nodes if isinstance(node.op, tfl.While) and len(node.op.body.nodes) > 2]
    of_type = {dtype: {body for body, of in zip(bodies, stored, strict=True) if of == dtype} for dtype in stored}
    assert all(len(same) == 1 for same in of_type.values())
    given = np.linspace(0.1, 1, SIZE, dtype=np.float32)[None]
    np.testing.assert_array_equal(evaluate_outputs(pieces, [given]), evaluate_outputs(b.graph, [given]))
