"""What the classes of ops claim (`converter/ir/op.py`) holds of what they compute, and what holds is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import BOOL, FLOAT32, Builder, Node, Op, TensorType, Value, evaluate, ops
from converter.ir.folding import FoldingBuilder
from converter.passes import propagate_slices
from tests.ir import applications_of_structure  # registers them
from tests.ir.applications import APPLICATIONS, Application, Numbers, graph_of

KINDS = sorted(APPLICATIONS, key=lambda kind: kind.__name__)
assert applications_of_structure

#: Linear as they are evaluated, and do not say so: kernels round by the size of the operand, or the derivative is a
#: person's.
UNCLAIMED = {
    ops.Int8MatMul, ops.DynamicRangeMatMul, ops.Int8Conv2D, ops.Int8Conv2DInputGrad, ops.CustomGradient,
    ops.Cast,  # float32 to float32 only
}  # fmt: skip


def drawn(kind: type[Op], seed: int) -> Application:
    return APPLICATIONS[kind](Numbers(np.random.default_rng(seed)))


def with_trait(claims: Callable[[Op], object], among: Iterable[type[Op]] = KINDS) -> list[type[Op]]:
    """The classes of which some application has a trait."""
    return [kind for kind in among if any(claims(drawn(kind, seed).op) for seed in range(20))]


def wide(arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    return [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]


def result(op: Op, *arrays: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(op.evaluate(*wide(arrays)))


def of_each(kinds: list[type[Op]], examples: int = 20) -> Callable:
    """A test of random applications of each class."""

    def marked(test: Callable) -> Callable:
        run = settings(max_examples=examples, deadline=None)(given(seed=st.integers(0, 2**31))(test))
        return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)(run)

    return marked


@of_each(with_trait(lambda op: op.elementwise))
def test_elementwise_is_of_those_at_its_place(kind: type[Op], seed: int) -> None:
    application, rng = drawn(kind, seed), np.random.default_rng(seed)
    whole = result(application.op, *application.operands)
    assert whole.shape == np.broadcast_shapes(*(a.shape for a in application.operands))
    part = tuple(slice(lo := int(rng.integers(n)), int(rng.integers(lo, n)) + 1) for n in whole.shape)
    cut = [np.broadcast_to(a, whole.shape)[part] for a in application.operands]
    np.testing.assert_array_equal(result(application.op, *cut), whole[part])


@of_each(with_trait(lambda op: op.in_parts), 40)
def test_parts_are_made_of_parts(kind: type[Op], seed: int) -> None:
    """Where operands are cut along an axis, the op's word is taken that they make that part of its result."""
    application, numbers = drawn(kind, seed), Numbers(np.random.default_rng(seed))
    graph = graph_of(Application(application.op, application.operands))
    b = Builder(graph)
    (y,) = graph.outputs.values()
    begin = tuple(numbers.whole(0, n - 1) for n in y.shape)
    size = tuple(numbers.whole(1, n - start) for n, start in zip(y.shape, begin, strict=True))
    graph.outputs = {"part": b(ops.Slice(begin, size), y)}
    feed = {f"x{k}": a for k, a in enumerate(application.operands)}
    (before,), (after,) = (evaluate(g, feed, np.float64)[0].values() for g in (graph, propagate_slices(graph)))
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)


def test_something_is_made_in_parts() -> None:
    """The test above would hold of an op whose operands are never cut."""

    def is_cut(kind: type[Op]) -> bool:
        for seed in range(60):
            application = drawn(kind, seed)
            graph = graph_of(application)
            (y,) = graph.outputs.values()
            size = tuple(1 if n == 4 else n for n in y.shape)
            graph.outputs = {"part": Builder(graph)(ops.Slice((0,) * len(size), size), y)}
            first = propagate_slices(graph).nodes[0]
            if isinstance(first.op, ops.Slice) and 4 in y.shape:
                return True
        return False

    claiming = with_trait(lambda op: op.in_parts)
    assert [kind for kind in claiming if not is_cut(kind)] == []


@of_each(with_trait(lambda op: op.keeps_data))
def test_data_is_kept(kind: type[Op], seed: int) -> None:
    application = drawn(kind, seed)
    np.testing.assert_array_equal(
        result(application.op, *application.operands).ravel(), application.operands[0].ravel()
    )


@of_each(with_trait(lambda op: op.moves_data))
def test_moved_elements_are_those_of_operands(kind: type[Op], seed: int) -> None:
    application = drawn(kind, seed)
    y = result(application.op, *application.operands)
    there = [a.astype(y.dtype).ravel() for a in application.operands if a.dtype.kind == y.dtype.kind]
    if application.op.fill is not None:
        there.append(np.asarray([application.op.fill], y.dtype))
    assert np.isin(y, np.concatenate(there)).all()


def groups(application: Application) -> list[list[int]]:
    """The operands that the op is linear in together, for each group that it names."""
    places = [k for k, a in enumerate(application.operands) if a.dtype.kind == "f"]
    return [[k for k in places if k in group] for group in application.op.linear_in]


def is_linear(application: Application, group: list[int], seed: int) -> bool:
    """Whether f(a x + b z) = a f(x) + b f(z) for random numbers, and z of the size of the operands."""
    numbers = Numbers(np.random.default_rng(seed))
    a, b = 1.7, -0.6
    x = wide(application.operands)
    z = [numbers.floats(*v.shape).astype(np.float64) if k in group else v for k, v in enumerate(x)]
    both = [a * v + b * w if k in group else v for k, (v, w) in enumerate(zip(x, z, strict=True))]
    whole, of_x, of_z = (result(application.op, *operands) for operands in (both, x, z))
    return whole.dtype.kind == "f" and np.allclose(whole, a * of_x + b * of_z, rtol=1e-9, atol=1e-9)


@of_each(with_trait(lambda op: op.linear_in))
def test_linear_in_its_groups(kind: type[Op], seed: int) -> None:
    application = drawn(kind, seed)
    for group in groups(application):
        if group:  # of integers it holds, too, but for overflow
            assert is_linear(application, group, seed), f"{application.op} in {group}"


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in UNCLAIMED], ids=lambda kind: kind.__name__)
def test_what_is_linear_says_so(kind: type[Op]) -> None:
    """For each float operand that no group has some application is not linear in it."""
    left: set[int] = set()
    shown: set[int] = set()
    for seed in range(60):
        application = drawn(kind, seed)
        if application.op.bodies():
            return
        claimed = {k for group in groups(application) for k in group}
        floats = {k for k, a in enumerate(application.operands) if a.dtype.kind == "f"} - claimed
        left |= floats
        shown |= {k for k in floats if not is_linear(application, [k], seed)}
    assert left == shown, f"{kind.__name__} is linear in {left - shown}: say so in `linear_in`"


@of_each(with_trait(lambda op: op.contracts))
def test_contractions_are_products_of_two(kind: type[Op], seed: int) -> None:
    application = drawn(kind, seed)
    constants = set(application.constants or {}) - {1}  # scales of the second operand
    assert {0, 1} == set(range(len(application.operands))) - constants
    for k, array in enumerate(application.operands):
        if array.dtype.kind == "f":
            assert is_linear(application, [k], seed)


@of_each(KINDS)
def test_results_lie_within_the_bounds(kind: type[Op], seed: int) -> None:
    application, rng = drawn(kind, seed), np.random.default_rng(seed)
    low, high = application.op.bounds(*(TensorType(a.shape, a.dtype) for a in application.operands))
    if (low, high) == (-np.inf, np.inf):
        return
    for size in (1.0, 10.0 ** rng.uniform(-3, 3)):
        operands = [a * size if a.dtype.kind == "f" else a for a in application.operands]
        y = result(application.op, *operands)
        assert y.min(initial=high) >= low - 1e-9
        assert y.max(initial=low) <= high + 1e-9


BINARY = with_trait(lambda op: isinstance(op, ops.Binary))


@of_each([kind for kind in BINARY if kind.identity is not None])  # type: ignore[attr-defined]
def test_the_identity_leaves_the_other_operand(kind: type[ops.Binary], seed: int) -> None:
    x = drawn(kind, seed).operands[0]
    assert kind.identity is not None
    if np.isinf(kind.identity) and x.dtype.kind != "f":
        return
    same = np.asarray(kind.identity, x.dtype)
    np.testing.assert_array_equal(kind().evaluate(x, same), x)
    if kind.commutes:
        np.testing.assert_array_equal(kind().evaluate(same, x), x)


@pytest.mark.parametrize("kind", BINARY, ids=lambda kind: kind.__name__)
def test_what_commutes_says_so(kind: type[ops.Binary]) -> None:
    same = []
    for seed in range(30):
        x, y = drawn(kind, seed).operands
        same.append(np.array_equal(result(kind(), x, y), result(kind(), y, x)))
    # Of what a mask chooses one operand is the mask, though a product of numbers is the same both ways.
    assert all(same) == (kind.commutes or kind is ops.Chosen)


@pytest.mark.parametrize("kind", with_trait(lambda op: isinstance(op, ops.Unary)), ids=lambda kind: kind.__name__)
def test_what_undoes_itself_says_so(kind: type[ops.Unary]) -> None:
    same = []
    for op, (x,) in ((a.op, a.operands) for a in (drawn(kind, seed) for seed in range(30))):
        if op.infer(type := TensorType(x.shape, x.dtype)) == type and not isinstance(op, ops.Cast):
            same.append(np.array_equal(result(op, result(op, x)), x.astype(np.float64) if x.dtype.kind == "f" else x))
    assert (bool(same) and all(same)) == kind.involution


@pytest.mark.parametrize("kind", with_trait(lambda op: op.link == "softmax"), ids=lambda kind: kind.__name__)
def test_a_softmax_link_is_normed_and_ignores_a_shift(kind: type[Op]) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5))
    y = result(kind(), x)
    np.testing.assert_allclose(result(kind(), x + 3.0), y, rtol=1e-9)
    probabilities = y if (y >= 0).all() else np.exp(y)
    np.testing.assert_allclose(probabilities, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("kind", with_trait(lambda op: op.link == "sigmoid"), ids=lambda kind: kind.__name__)
def test_a_sigmoid_link_is_one(kind: type[Op]) -> None:
    x = np.linspace(-5, 5, 21)
    np.testing.assert_allclose(result(kind(), x), 1 / (1 + np.exp(-x)), rtol=1e-9)


@pytest.mark.parametrize("op", [ops.Dropout(0.5), ops.CallKey(3)], ids=str)
def test_what_is_drawn_is_not_computed_when_a_program_is_built(op: Op) -> None:
    for b in (Builder(), FoldingBuilder()):
        operands: list[Value] = [] if isinstance(op, ops.CallKey) else [b.constant(np.ones((2, 3), np.float32))]
        made = b(op, *operands)
        assert not op.folds
        assert [node.op for node in b.graph.nodes] == [op]
        assert isinstance(b.graph.nodes[0], Node)
        assert made.dtype in (FLOAT32, np.int32, BOOL)
