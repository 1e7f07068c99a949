"""Products that read one operand turned, in the stock interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.peephole.transposed import transposed_once
from converter.ir import Builder, TensorType
from tests.backend.stock import file, run


@pytest.mark.parametrize("front", [(), (2, 3)])
@pytest.mark.parametrize(("readers", "transposes"), [(1, 0), (2, 1), (3, 1)])
def test_an_operand_is_transposed_once(front: tuple[int, ...], readers: int, transposes: int) -> None:
    """By all products that read it so on their left; one alone does it itself, and nothing else is touched."""
    b = Builder()
    x = b.input("x", TensorType((*front, 5, 4)))
    for i in range(readers):
        y = b.input(f"y{i}", TensorType((*front, 6, 5) if i == 1 else (*front, 5, 6)))
        b.graph.outputs[f"z{i}"] = b(tfl.BatchMatmul(True, i == 1), x, y)
    b.graph.outputs["right"] = b(tfl.BatchMatmul(False, True), x, b.input("u", TensorType((*front, 3, 4))))
    after = transposed_once(b.graph)
    codes = [node.op.code for node in after.nodes]
    assert codes.count("TRANSPOSE") == transposes
    assert sum(node.op.adj_x for node in after.nodes if isinstance(node.op, tfl.BatchMatmul)) == readers * (
        not transposes
    )
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    got, expected = run(file(after), feed, True), run(file(b.graph), feed, True)
    for name, wanted in expected.items():
        np.testing.assert_array_equal(got[name], wanted)
