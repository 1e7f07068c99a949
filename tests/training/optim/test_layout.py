"""Which updates may take a weight in any order of its elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import Op, evaluate
from converter.training.optim.program import is_elementwise
from tests.ir import applications_of_structure  # registers them
from tests.ir.applications import APPLICATIONS, Numbers, graph_of

assert applications_of_structure


@pytest.mark.parametrize("kind", APPLICATIONS, ids=lambda kind: kind.__name__)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_what_is_called_elementwise_commutes_with_any_order(kind: type[Op], seed: int) -> None:
    rng = np.random.default_rng(seed)
    application = APPLICATIONS[kind](Numbers(rng))
    graph = graph_of(application)
    if not graph.inputs or not is_elementwise(graph):
        return
    feed = {f"x{k}": a for k, a in enumerate(application.operands) if k not in (application.constants or {})}
    before = evaluate(graph, feed, np.float64)[0]["y0"]
    order = rng.permutation(before.size)

    def reordered(array: np.ndarray) -> np.ndarray:
        return array.ravel()[order].reshape(array.shape) if array.size == order.size else array

    after = evaluate(graph, {name: reordered(a) for name, a in feed.items()}, np.float64)[0]["y0"]
    np.testing.assert_array_equal(after, reordered(before))
