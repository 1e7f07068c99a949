"""Single rules of `simplify`; what it does to whole networks is in test_stages."""

from __future__ import annotations

import numpy as np

from converter.ir import Builder, TensorType, ops
from converter.ir.evaluate import evaluate
from converter.passes import simplify


def test_a_factor_goes_before_a_scatter() -> None:
    """The rows of a batch are multiplied, not those of a whole table."""
    b = Builder()
    indices = b.input("i", TensorType((3,), np.dtype(np.int32)))
    rows, rate = b.input("u", TensorType((3, 4))), b.input("rate", TensorType((1,)))
    b.graph.outputs = {"y": b(ops.Mul(), rate, b(ops.ScatterAdd(100), indices, rows))}
    after = simplify(b.graph)
    (product,) = (node for node in after.nodes if isinstance(node.op, ops.Mul))
    assert product.output.shape == (3, 4)
    rng = np.random.default_rng(0)
    feed = {"i": np.array([7, 99, 7], np.int32), "u": rng.standard_normal((3, 4)), "rate": np.array([0.1])}
    (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-6)
