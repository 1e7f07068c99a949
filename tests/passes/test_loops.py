"""Passes on loops keep what they mean; values are compared in double precision."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from converter.backend.lowering.lower import lower
from converter.backend.targets import target
from converter.ir import Graph, evaluate, ops, verify
from converter.passes import eliminate_dead_code, simplify_loops, split_loops
from converter.passes.autodiff.minimum_cut import minimum_cut
from tests.jax_frontend.common import traced, with_gradients

RNG = np.random.default_rng(0)
LENGTH = 101  # a prime, so that steps are left over


def rnn(x: Any, xs: Any, w: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        state, scale, unused = c
        state = jnp.tanh(state @ w + row) * scale
        return (state, scale, unused + 1), (state.sum(), row * scale)

    (state, _, _), (sums, rows) = lax.scan(step, (x, jnp.float32(0.9), 0.0), xs, reverse=True)
    return state, sums, rows


def graphs() -> tuple[Graph, dict[str, np.ndarray]]:
    """A loop with its derivative, and what it reads."""
    graph = with_gradients(traced(rnn, RNG.normal(size=(2, 3)), RNG.normal(size=(LENGTH, 2, 3)), np.eye(3)))
    return graph, {v.name: RNG.normal(size=v.shape).astype(np.float32) for v in graph.inputs}


@pytest.mark.parametrize(
    "change",
    [eliminate_dead_code, simplify_loops, split_loops, lambda graph: lower(split_loops(graph), target("litert-2"))],
    ids=["eliminate_dead_code", "simplify_loops", "split_loops", "lower"],
)
def test_a_pass_keeps_the_meaning(change: Any) -> None:
    before, feed = graphs()
    after = verify(change(verify(before)))
    fed = {v.name: feed[v.name].reshape(v.shape) for v in after.inputs}
    expected, found = evaluate(before, feed, np.float64)[0], evaluate(after, fed, np.float64)[0]
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].reshape(array.shape), array, rtol=1e-6, atol=1e-9, err_msg=name)


def test_what_is_handed_on_for_nothing_goes() -> None:
    graph = simplify_loops(eliminate_dead_code(graphs()[0]))
    for loop in (node.op for node in graph.nodes if isinstance(node.op, ops.Scan)):
        made = list(loop.body.outputs.values())
        handed_on = zip(loop.body.inputs[loop.fixed :], made[: loop.carried], strict=False)
        assert all(before is not after for before, after in handed_on)
    forward = next(node for node in graph.nodes if isinstance(node.op, ops.Scan))
    assert forward.op.carried == 1


def test_the_smallest_cut() -> None:
    weights = {"a": 4, "b": 1, "c": 1, "d": 1, "e": 5}
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e")]
    assert minimum_cut(weights, edges, {"a"}, {"e"}) == {"d"}
    assert minimum_cut(weights, edges, {"a"}, {"b", "c"}) == {"b", "c"}
    assert minimum_cut(weights | {"a": 2}, edges, {"a"}, {"b", "c"}) == {"a"}  # the nearest to the sources
    assert minimum_cut(weights, edges, set(), {"e"}) == set()
