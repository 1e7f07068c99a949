"""Layout assignment keeps what a graph computes, its gradients included, and moves no more than before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import Builder, Graph, evaluate, ops, verify
from converter.passes.autodiff import differentiate
from converter.passes.layout import assign_layouts
from converter.passes.layout.assign import moved_elements
from tests.passes.layout.random_graphs import RandomGraph


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_any_graph_computes_the_same(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_any_graph_computes_the_same_often() -> None:
    for seed in range(20_000):
        check(seed)


def check(seed: int) -> None:
    """Raise AssertionError where outputs or gradients of a random graph are others behind the pass."""
    before = with_loss(RandomGraph(seed).draw(3 + seed % 25), seed)
    after = verify(assign_layouts(before), "assign_layouts")
    assert moved_elements(after) <= moved_elements(before)
    (x,) = before.inputs
    feed = {"x": np.random.default_rng(seed).standard_normal(x.shape).astype(np.float32)}
    expected, found = (with_gradients(graph, feed) for graph in (before, after))
    assert expected.keys() == found.keys()
    sizes = {name: max(1.0, float(np.abs(array).max(initial=0))) for name, array in expected.items()}
    # A derivative may be a sum that cancels, of terms as large as the others, and a graph has its constants (1 / 3 of a
    # mean) in float32.
    rounded = 2**-24 * max(sizes.values())
    for name, array in expected.items():
        assert found[name].shape == array.shape
        atol = 1e-6 * sizes[name] + rounded
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=atol, err_msg=f"seed {seed}: {name}")


def with_loss(graph: Graph, seed: int) -> Graph:
    """Return the graph with a number that depends on every element of every output."""
    rng, b = np.random.default_rng(seed), Builder(graph)
    parts = []
    for value in graph.outputs.values():
        weighted = b(ops.Mul(), value, rng.standard_normal(value.shape).astype(np.float32))
        parts.append(b(ops.Sum(tuple(range(len(value.shape)))), weighted))
    total = parts[0]
    for part in parts[1:]:
        total = b(ops.Add(), total, part)
    graph.outputs = {**graph.outputs, "loss": total}
    return graph


def with_gradients(graph: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what a graph gives, and the derivatives of its loss by parameter."""
    backward, gradients = differentiate(graph, graph.outputs["loss"], graph.weights())
    outputs = dict(graph.outputs) | {f"d {graph.parameters[p].name}": g for p, g in gradients.items()}
    backward.outputs = outputs
    return evaluate(backward, feed, np.float64)[0]
