"""Chains of per-channel arithmetic around products of every kind: what they mean stays, what they cost goes."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import Builder, Graph, Op, Parameter, TensorType, Value, dependents, evaluate, ops, verify
from converter.passes import fold_affine, fold_constants, merge_common_subexpressions

ARITHMETIC = (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg)
SHAPE = (2, 6, 5, 4)
SEEDS = st.integers(0, 2**20)


@dataclass
class Net:
    """Draws a graph of products with chains before, between and behind them."""

    seed: int = 0
    frozen: bool = False
    b: Builder = field(default_factory=Builder)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def vector(self, *shape: int, trained: bool | None = None) -> Value:
        """A frozen or trained tensor; zeros now and then where it is added or multiplied."""
        array = self.rng.uniform(0.5, 2, shape) * self.rng.choice([-1, 1], shape)
        trained = not self.frozen and bool(self.rng.integers(2)) if trained is None else trained
        if not trained:
            return self.b.constant(array.astype(np.float32))
        value = Value(TensorType(shape), f"p{len(self.b.graph.parameters)}")
        self.b.graph.parameters[value] = Parameter(value.name, array.astype(np.float32))
        return value

    def step(self, x: Value) -> Value:
        channels, rank = x.shape[-1], len(x.shape)
        shape = [(channels,), (1,) * (rank - 1) + (channels,), (), (1,)][self.rng.integers(4)]
        op = ARITHMETIC[self.rng.integers(len(ARITHMETIC))]()
        if isinstance(op, ops.Neg):
            return self.b(op, x)
        by = self.vector(*shape)
        backwards = not isinstance(op, ops.Div) and self.rng.integers(2)
        return self.b(op, by, x) if backwards else self.b(op, x, by)

    def chain(self, x: Value) -> Value:
        for _ in range(int(self.rng.integers(5))):
            x = self.step(x)
            if self.rng.integers(12) == 0:  # what is in the middle is read elsewhere
                self.b.graph.outputs[f"seen {len(self.b.graph.outputs)}"] = x
        return x

    def product(self, x: Value) -> Value:
        around = ((0, 0), (0, 0)) if self.rng.integers(2) else ((1, 0), (0, 2))
        channels = x.shape[-1]
        match int(self.rng.integers(7)):
            case 0:
                return self.b(ops.Conv2D((1, 1), around), x, self.vector(4, 2, 2, channels))
            case 1:
                return self.b(ops.DepthwiseConv2D((1, 1), around), x, self.vector(1, 2, 1, 2 * channels))
            case 2:
                size = (2 * x.shape[1], 2 * x.shape[2])
                return self.b(ops.Conv2DInputGrad((2, 2), size=size), x, self.vector(channels, 2, 2, 4))
            case 3:  # groups
                halves = [self.slice(x, i * channels // 2, channels // 2) for i in range(2)]
                return self.b(
                    ops.Concat(3), *(self.b(ops.Conv2D(), h, self.vector(3, 1, 1, channels // 2)) for h in halves)
                )
            case 4:  # a channel-sparse layer
                op, parts = ops.Conv2D((1, 1), around), [(0, 1, True), (1, channels - 1, False)]
                cut = [
                    (self.slice(x, i, n), self.vector(4, 2, 1, n, trained=t and not self.frozen)) for i, n, t in parts
                ]
                return self.b(ops.Add(), *(self.b(op, *pair) for pair in cut))
            case 5:  # one weight for two images
                w = self.vector(channels, 1, 1, channels)
                return self.b(ops.Add(), self.b(ops.Conv2D(), x, w), self.step(self.b(ops.Conv2D(), self.chain(x), w)))
        adj_x, adj_y = map(bool, self.rng.integers(0, 2, 2))
        depth = x.shape[2] if adj_x else channels
        return self.b(ops.MatMul(adj_x, adj_y), x, self.vector(*((4, depth) if adj_y else (depth, 4))))

    def slice(self, x: Value, start: int, size: int) -> Value:
        return self.b(ops.Slice((0, 0, 0, start), (*x.shape[:3], size)), x)

    def graph(self) -> Graph:
        x: Value = self.b.input("x", TensorType(SHAPE))
        for _ in range(int(self.rng.integers(1, 4))):
            x = self.product(self.chain(x))
        self.b.graph.outputs["y"] = self.chain(x)
        return self.b.graph


def folded(graph: Graph) -> Graph:
    return fold_constants(merge_common_subexpressions(fold_affine(fold_constants(graph))))


def wide(graph: Graph) -> Counter[type[Op]]:
    """The arithmetic on activations that is left."""
    return Counter(type(n.op) for n in graph.nodes if isinstance(n.op, ARITHMETIC) and n.output.shape[0] == SHAPE[0])


def products(graph: Graph) -> Counter[type[Op]]:
    """Products of activations."""
    kinds = (ops.Conv2D, ops.DepthwiseConv2D, ops.Conv2DInputGrad, ops.MatMul)
    fed = dependents(graph, graph.inputs)
    return Counter(type(n.op) for n in graph.nodes if isinstance(n.op, kinds) and n.output in fed)


def assert_same(before: Graph, after: Graph) -> None:
    feed = np.random.default_rng(1).standard_normal(before.inputs[0].shape)
    expected, found = (evaluate(graph, [feed], np.float64)[0] for graph in (before, after))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        # Folded constants are rounded to float32.
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5 * np.abs(array).max(), err_msg=name)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, frozen=st.booleans())
def test_any_chain_keeps_its_meaning_and_gets_no_longer(seed: int, frozen: bool) -> None:
    before = verify(Net(seed, frozen).graph(), "drawn")
    after = verify(folded(before), "folded")
    assert_same(before, after)
    assert products(fold_affine(before)) == products(before)
    # A shift before the parts of a layer becomes one of each of them, which is the bias of its kernel.
    parts = sum(isinstance(n.op, ops.Slice) for n in before.nodes)
    assert sum(wide(after).values()) <= sum(wide(before).values()) + parts


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 6), kind=st.sampled_from(["conv", "depthwise", "transposed", "matmul"]))
def test_a_frozen_chain_behind_a_product_is_its_bias(seed: int, steps: int, kind: str) -> None:
    net = Net(seed, frozen=True)
    x = net.b.input("x", TensorType(SHAPE))
    op, weight = PRODUCTS[kind]
    y = net.b(op, x, net.vector(*weight))
    for _ in range(steps):
        y = net.step(y)
    net.b.graph.outputs["y"] = y
    after = folded(net.b.graph)
    assert_same(net.b.graph, after)
    assert wide(after) in (Counter(), Counter([ops.Add]), Counter([ops.Sub])), "nothing, or one shift"


PRODUCTS: dict[str, tuple[Op, tuple[int, ...]]] = {
    "conv": (ops.Conv2D((2, 1), ((1, 1), (0, 1))), (3, 3, 3, 4)),
    "depthwise": (ops.DepthwiseConv2D(), (1, 2, 2, 8)),
    "transposed": (ops.Conv2DInputGrad((2, 2), size=(12, 10)), (4, 2, 2, 3)),
    "matmul": (ops.MatMul(False, True), (3, 4)),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_frozen_scale_before_a_product_goes_into_its_input_channels(kind: str) -> None:
    net = Net(0, frozen=True)
    x = net.b.input("x", TensorType(SHAPE))
    op, weight = PRODUCTS[kind]
    net.b.graph.outputs["y"] = net.b(
        op, net.b(ops.Mul(), net.b(ops.Div(), x, 255.0), net.vector(4)), net.vector(*weight)
    )
    after = folded(net.b.graph)
    assert_same(net.b.graph, after)
    assert not wide(after)


@pytest.mark.parametrize(("padding", "left"), [(0, 1), (1, 2)])
def test_a_shift_before_a_convolution_folds_only_without_padding(padding: int, left: int) -> None:
    """Zeros around the image are not shifted."""
    net = Net(0, frozen=True)
    x = net.b.input("x", TensorType(SHAPE))
    shifted = net.b(ops.Mul(), net.b(ops.Sub(), x, net.vector(4)), net.vector(4))
    around = ((padding, padding), (padding, padding))
    net.b.graph.outputs["y"] = net.b(ops.Conv2D((1, 1), around), shifted, net.vector(3, 3, 3, 4))
    after = folded(net.b.graph)
    assert_same(net.b.graph, after)
    assert sum(wide(after).values()) == left


def scaled_product(weight_is_trained: bool, scale_is_trained: bool, rows: int = 50) -> Graph:
    """A product of [rows, 4] and [4, 8], with a frozen scale, then one that may train, then a trained shift."""
    net = Net(0)
    x = net.b.input("x", TensorType((rows, 4)))
    y = net.b(ops.MatMul(), x, net.vector(4, 8, trained=weight_is_trained))
    y = net.b(ops.Mul(), net.b(ops.Sub(), y, net.vector(8, trained=False)), net.vector(8, trained=False))
    y = net.b(ops.Mul(), y, net.vector(8, trained=scale_is_trained))
    net.b.graph.outputs["y"] = net.b(ops.Add(), y, net.vector(8, trained=True))
    return folded(net.b.graph)


def on_rows(graph: Graph, rows: int) -> list[type[Op]]:
    return [type(n.op) for n in graph.nodes if n.output.shape[0] == rows]


@pytest.mark.parametrize("weight_is_trained", [True, False])
@pytest.mark.parametrize("scale_is_trained", [True, False])
def test_where_a_trained_scale_goes(weight_is_trained: bool, scale_is_trained: bool) -> None:
    graph = scaled_product(weight_is_trained, scale_is_trained)
    if weight_is_trained or not scale_is_trained:
        assert on_rows(graph, 50) == [ops.MatMul, ops.Add]
    else:  # a constant weight stays one: the frozen part is folded, the trained one is one scale and one shift
        assert on_rows(graph, 50) == [ops.MatMul, ops.Add, ops.Mul, ops.Add]
        product = next(n for n in graph.nodes if isinstance(n.op, ops.MatMul))
        assert product.inputs[1] in graph.constants


def test_a_trained_weight_larger_than_the_activation_is_left() -> None:
    assert on_rows(scaled_product(True, True, rows=2), 2) == [ops.MatMul, ops.Mul, ops.Add]


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_numbers_that_are_not_finite_stay_out_of_weights(wrong: float) -> None:
    net = Net(0, frozen=True)
    x = net.b.input("x", TensorType(SHAPE))
    y = net.b(ops.Conv2D(), x, net.vector(4, 1, 1, 4))
    net.b.graph.outputs["y"] = net.b(ops.Mul(), y, np.array([1, 2, wrong, 3], np.float32))
    after = folded(net.b.graph)
    assert wide(after) == {ops.Mul: 1}
    assert all(np.isfinite(a).all() for v, a in after.constants.items() if a.ndim == 4)


def test_a_trained_bias_before_a_trained_scale_is_part_of_the_shift() -> None:
    net = Net(0)
    x = net.b.input("x", TensorType((50, 4)))
    y = net.b(ops.Add(), net.b(ops.MatMul(), x, net.vector(4, 8, trained=False)), net.vector(8, trained=True))
    y = net.b(ops.Mul(), net.b(ops.Div(), y, net.vector(8, trained=False)), net.vector(8, trained=True))
    net.b.graph.outputs["y"] = net.b(ops.Add(), y, net.vector(8, trained=True))
    after = folded(net.b.graph)
    assert_same(net.b.graph, after)
    assert on_rows(after, 50) == [ops.MatMul, ops.Mul, ops.Add]


def test_a_scaled_input_that_others_read_is_left() -> None:
    net = Net(0, frozen=True)
    x = net.b.input("x", TensorType(SHAPE))
    scaled = net.b(ops.Mul(), x, net.vector(4))
    net.b.graph.outputs |= {"scaled": scaled, "y": net.b(ops.Conv2D(), scaled, net.vector(4, 1, 1, 4))}
    assert [n.op for n in folded(net.b.graph).nodes] == [n.op for n in net.b.graph.nodes]
    assert folded(net.b.graph).nodes[1].inputs[0] is scaled


def test_a_product_read_elsewhere_is_left() -> None:
    net = Net(0, frozen=True)
    x = net.b.input("x", TensorType(SHAPE))
    y = net.b(ops.Conv2D(), x, net.vector(4, 1, 1, 4))
    net.b.graph.outputs |= {"raw": y, "scaled": net.b(ops.Mul(), y, net.vector(4))}
    assert Counter(type(n.op) for n in folded(net.b.graph).nodes) == {ops.Conv2D: 1, ops.Mul: 1}


def test_what_depends_on_the_data_is_no_scale_of_a_weight() -> None:
    """Squeeze and excite of one image: a number for each channel, but another one for each image."""
    b = Builder()
    x = b.input("x", TensorType((1, 6, 5, 4)))
    y = b(ops.Conv2D(), x, b.constant(np.ones((4, 1, 1, 4), np.float32)))
    b.graph.outputs["y"] = b(ops.Mul(), y, b(ops.Logistic(), b(ops.Mean((1, 2), True), x)))
    assert [n.op for n in folded(b.graph).nodes] == [n.op for n in b.graph.nodes]
