"""Products of several factors: right in the stock interpreter, against numpy, with the fewest numbers computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import Builder, Graph, TensorType, Value
from converter.tflite import builtins as tfl
from converter.tflite.products import smallest_products
from tests.tflite.stock import file, run

RNG = np.random.default_rng(0)
FULL = (4, 3, 5)
#: Factors that are repeated to the full shape, or are of it.
SHAPES = [FULL, (4, 1, 5), (1, 3, 1), (4, 3, 1), (5,), (1,)]


def product(shapes: list[tuple[int, ...]], ones: tuple[int, ...] = (), activation: str = "NONE") -> Graph:
    """((a b) c) ... of inputs; at the positions `ones` constants of ones. The innermost has the activation."""
    b, found = Builder(), []
    for i, shape in enumerate(shapes):
        found.append(b.constant(np.ones(shape, np.float32)) if i in ones else b.input(f"x{i}", TensorType(shape)))
    total: Value = b(tfl.Mul(activation), found[0], found[1])  # type: ignore[arg-type]
    for factor in found[2:]:
        total = b(tfl.Mul(), total, factor)
    b.graph.outputs = {"y": total}
    return b.graph


def work(graph: Graph) -> list[int]:
    """How many numbers each MUL computes."""
    return sorted(node.output.type.size for node in graph.nodes)


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=2, max_size=5),
    ones=st.sets(st.integers(0, 4)),
    clamps=st.booleans(),
)
def test_any_order_is_right(shapes: list[tuple[int, ...]], ones: set[int], clamps: bool) -> None:
    shapes = [*shapes, FULL]
    graph = product(shapes, tuple(ones - {len(shapes) - 1}), "RELU6" if clamps else "NONE")
    feed = {v.name: RNG.uniform(-3, 3, v.shape).astype(np.float32) for v in graph.inputs}
    factors = [feed.get(f"x{i}", np.ones(shape, np.float32)) for i, shape in enumerate(shapes)]
    first = factors[0] * factors[1]
    expected = np.clip(first, 0, 6) if clamps else first
    for factor in factors[2:]:
        expected = expected * factor
    fewer = smallest_products(graph)
    assert sum(work(fewer)) <= sum(work(graph))
    assert fewer.outputs["y"].shape == graph.outputs["y"].shape
    np.testing.assert_allclose(run(file(fewer), feed, xnnpack=True)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "ones", "activation", "left"),
    [
        ([FULL, (4, 3, 1), (4, 3, 1)], (), "NONE", [12, 60]),  # two factors of the rows
        ([(4, 1, 5), (1, 3, 1), FULL], (1,), "NONE", [60]),  # ones that repeat what the last factor repeats anyway
        ([(4, 1, 5), (1, 3, 1)], (1,), "NONE", [60]),  # ones that nothing else replaces
        ([(4, 1, 5), FULL, (5,)], (), "NONE", [20, 60]),
        ([FULL, FULL, (1,)], (), "NONE", [60, 60]),
        ([FULL, (4, 3, 1), (4, 3, 1)], (), "RELU", [60, 60]),  # what is cut off is no factor
    ],
)
def test_the_fewest_numbers(shapes, ones, activation, left) -> None:  # type: ignore[no-untyped-def]
    assert work(smallest_products(product(shapes, ones, activation))) == left


def test_what_others_read_stays() -> None:
    graph = product([FULL, (4, 3, 1), (4, 3, 1)])
    graph.outputs["inner"] = graph.nodes[0].output
    assert work(smallest_products(graph)) == [60, 60]
