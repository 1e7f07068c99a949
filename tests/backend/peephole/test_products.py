"""Products of several factors: right in the stock interpreter, against numpy, with the fewest numbers computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.backend import builtins as tfl
from converter.backend.peephole.products import smallest_products
from converter.ir import Builder, Graph, TensorType, Value, evaluate, verify
from converter.ir.rewrite import eliminate_dead_code
from tests.backend.stock import file, run

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


@st.composite
def shared(draw: st.DrawFn) -> tuple[Graph, dict[str, np.ndarray]]:
    """Products of products, of which some are read by several, some are squares and some have no elements."""
    full = draw(st.lists(st.sampled_from([1, 2, 3, 0, 4]), min_size=1, max_size=4))
    b, found, feed = Builder(), [], {}
    for i in range(4):
        kept = draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full)))
        shape = tuple(n if keep else 1 for n, keep in zip(full, kept, strict=True))[
            draw(st.integers(0, len(full) - 1)) :
        ]
        if draw(st.integers(0, 3)) == 0:
            found.append(b.constant(np.full(shape, draw(st.sampled_from([1, 0, 2, 1e20])), np.float32)))
        else:
            feed[f"x{i}"] = np.asarray(RNG.uniform(0.5, 2, shape), np.float32)
            found.append(b.input(f"x{i}", TensorType(shape)))
    for _ in range(6):
        x, y = (found[draw(st.integers(0, len(found) - 1))] for _ in range(2))
        found.append(b(tfl.Mul(draw(st.sampled_from(["NONE"] * 4 + ["RELU6"]))), x, y))
    b.graph.outputs = {"y": found[-1], "z": found[draw(st.integers(4, 9))]}
    return eliminate_dead_code(b.graph), feed


@settings(max_examples=400, deadline=None)
@given(case=shared())
def test_no_graph_gets_more_work(case: tuple[Graph, dict[str, np.ndarray]]) -> None:
    graph, feed = case
    fewer = verify(smallest_products(graph))
    assert sum(work(fewer)) <= sum(work(graph))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted, given = (evaluate(g, feed)[0] for g in (graph, fewer))
    for name, array in wanted.items():
        assert given[name].shape == array.shape
        np.testing.assert_allclose(given[name], array, rtol=1e-5)


def test_what_became_a_product_of_fewer_is_computed_once_for_two_readers() -> None:
    b = Builder()
    small, rows, columns = (b.input(k, TensorType(s)) for k, s in (("x", (3, 1, 1, 3)), ("a", (3,)), ("c", (2, 1))))
    inner = b(tfl.Mul(), columns, b(tfl.Mul(), small, rows))
    outer = b(tfl.Mul(), inner, columns)
    b.graph.outputs = {"y": b(tfl.Mul(), inner, outer)}
    assert sum(work(smallest_products(b.graph))) <= sum(work(b.graph))


def test_one_value_may_be_two_factors_of_nothing() -> None:
    b = Builder()
    x, none = b.input("x", TensorType((4,))), b.input("none", TensorType((0, 1)))
    b.graph.outputs = {"y": b(tfl.Mul(), b(tfl.Mul(), x, x), none)}
    assert smallest_products(b.graph).outputs["y"].shape == (0, 4)


@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_constants_of_extreme_size_are_multiplied_in_the_order_as_written(size: float) -> None:
    """(x 1e25) s is finite where x and s are small, 1e25 s is not where both are large."""
    b = Builder()
    x, s = b.input("x", TensorType((4, 5))), b.input("s", TensorType((4, 1)))
    b.graph.outputs = {"y": b(tfl.Mul(), b(tfl.Mul(), x, b.constant(np.full((4, 1), size, np.float32))), s)}
    feed = {"x": np.full((4, 5), 1 / size, np.float32), "s": np.full((4, 1), size, np.float32)}
    np.testing.assert_allclose(run(file(smallest_products(b.graph)), feed, xnnpack=True)["y"], size, rtol=1e-6)


def test_what_others_read_stays() -> None:
    graph = product([FULL, (4, 3, 1), (4, 3, 1)])
    graph.outputs["inner"] = graph.nodes[0].output
    assert work(smallest_products(graph)) == [60, 60]
