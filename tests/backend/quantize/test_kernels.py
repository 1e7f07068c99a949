"""What the stock interpreter's integer kernels compute, against what the ops mean and against float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.backend import builtins as tfl
from converter.backend.quantize import calibrate
from converter.backend.quantize.calibrate import ranges
from converter.backend.quantize.prefix import quantize_prefix
from converter.backend.quantize.rewrite import to_int8
from converter.backend.targets import target
from converter.ir import UNSCALED, Builder, Graph, Quantization, TensorType, Value, evaluate, evaluate_values, verify
from converter.ir.scales import of_bias, of_range, of_weight
from tests.backend.schedule.arena import interpreter_arena
from tests.backend.stock import file, run
from tests.models.execution import execution

#: Ops between int8 activations: the op, shapes of its operands, and the result's quantization (None: the operand's).
INT8 = [
    (tfl.Add("RELU"), [(2, 6, 6, 8)] * 2, of_range(0, 8)),
    (tfl.Sub(), [(2, 6, 6, 8)] * 2, of_range(-6, 6)),
    (tfl.Mul(), [(2, 6, 6, 8), (2, 1, 1, 8)], of_range(-9, 9)),
    (tfl.Mean((1, 2)), [(2, 6, 6, 8)], of_range(-1, 1)),
    (tfl.Mean((1, 2), keepdims=True), [(2, 6, 6, 8)], of_range(-1, 1)),
    (tfl.Sum((1, 2), keepdims=True), [(2, 6, 6, 8)], of_range(-40, 40)),
    (tfl.LeakyRelu(0.1), [(2, 6, 6, 8)], of_range(-0.5, 4)),
    (tfl.Logistic(), [(2, 6, 6, 8)], Quantization((1 / 256,), -128)),
    (tfl.Tanh(), [(2, 6, 6, 8)], Quantization((1 / 128,), 0)),
    (tfl.MaxPool2D((3, 3), (2, 2), "SAME"), [(2, 6, 6, 8)], None),
    (tfl.Pad(((0, 0), (1, 1), (0, 2), (0, 0))), [(2, 6, 6, 8)], None),
    (tfl.Reshape((2, 36, 8)), [(2, 6, 6, 8)], None),
    (tfl.Transpose((0, 2, 1, 3)), [(2, 6, 6, 8)], None),
    (tfl.Slice((0, 1, 0, 0), (2, 4, 6, 8)), [(2, 6, 6, 8)], None),
    (tfl.SpaceToDepth(2), [(2, 6, 6, 8)], None),
    (tfl.Concatenation(3), [(2, 6, 6, 8)] * 2, None),
]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("op", "shapes", "to"), INT8, ids=lambda v: v.code if isinstance(v, tfl.Builtin) else "")
def test_int8_kernel_computes_what_it_means(op: tfl.Builtin, shapes: list, to: Quantization | None) -> None:
    b, feed, of = Builder(), {}, of_range(-4, 5)
    for i, shape in enumerate(shapes):
        feed[f"x{i}"] = 2 * normal(i, *shape)
    ints = [b(tfl.Quantize(of), b.input(name, TensorType(x.shape))) for name, x in feed.items()]
    y = b(tfl.Int8((of,) * len(ints), op, to or of), *ints)
    b.graph.outputs = {"y": b(tfl.Dequantize((y.type.quantization,)), y)}
    expected = evaluate(verify(b.graph), feed)[0]["y"]
    model = file(b.graph)
    for xnnpack in (True, False):
        steps = np.abs(run(model, feed, xnnpack)["y"] - expected) / y.type.quantization.scale
        assert steps.max() < 1.01, "one rounding apart"
    assert all(step.delegated for step in execution(model))


def layer(op: tfl.Builtin, x: tuple[int, ...], w: np.ndarray, bias: np.ndarray) -> Graph:
    """A convolution or dense layer with constant weights."""
    b = Builder()
    b.graph.outputs = {"y": b(op, b.input("x", TensorType(x)), b.constant(w), b.constant(bias))}
    return b.graph


@st.composite
def layers(draw) -> tuple[Graph, np.ndarray]:
    """A layer, and one input of it."""
    seed, kind = draw(st.integers(0, 2**20)), draw(st.sampled_from(["conv", "depthwise", "dense"]))
    rng = np.random.default_rng(seed)
    i, o = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    activation = draw(st.sampled_from(["NONE", "RELU", "RELU6"]))
    spread = np.exp(draw(st.floats(0, 2)) * rng.standard_normal(o)).astype(np.float32)
    if kind == "dense":
        x, w = (4, i), normal(seed, o, i) * spread[:, None]
        return layer(tfl.FullyConnected(activation), x, w, normal(seed, o)), normal(seed + 1, *x)
    kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    if kind == "conv":
        x, w = (2, 6, 7, i), normal(seed, o, kernel, kernel, i) * spread[:, None, None, None]
        op: tfl.Builtin = tfl.Conv2D((stride, stride), padding, (1, 1), activation)
    else:
        x, w = (2, 6, 7, o), normal(seed, 1, kernel, kernel, o) * spread
        op = tfl.DepthwiseConv2D((stride, stride), padding, (1, 1), activation)
    return layer(op, x, w, normal(seed, o)), normal(seed + 1, *x)


def quantized(graph: Graph, x: np.ndarray) -> Graph:
    """The layer on int8."""
    (node,) = graph.nodes
    return to_int8(graph, {node}, set(), ranges(graph, [node.inputs[0], node.output], {"x": x}, len(x)))


def bound(graph: Graph, int8: Graph, x: np.ndarray) -> np.ndarray:
    """How far int8 may be off, from its scales alone: half a step of the input, the weights and the result.

    sum |w| s_x/2 + sum |x| s_w/2 + sum s_x s_w/4, computed by the layer itself on absolute values, and a step of y
    (XNNPACK and the builtin kernels round differently).
    """
    (node,) = graph.nodes
    (kernel,) = (n for n in int8.nodes if isinstance(n.op, tfl.Int8))
    of_x, of_w, _ = kernel.op.of
    w = graph.constants[node.inputs[1]]
    half_w = np.broadcast_to(of_w.steps(w.ndim) / 2, w.shape)
    plain = {**vars(node.op), "activation": "NONE"}
    op, zero = type(node.op)(**plain), np.zeros(len(graph.constants[node.inputs[2]]))
    half_x = np.full(x.shape, of_x.scale / 2)
    by_input = op.evaluate(half_x, np.abs(w).astype(np.float64), zero)
    by_weight = op.evaluate(np.abs(x).astype(np.float64) + half_x, half_w, zero)
    return by_input + by_weight + 1.1 * kernel.op.to.scale


@settings(max_examples=40, deadline=None)
@given(case=layers(), xnnpack=st.booleans())
def test_int8_layer_is_float32_within_its_steps(case: tuple[Graph, np.ndarray], xnnpack: bool) -> None:
    graph, x = case
    int8 = verify(quantized(graph, x))
    expected = run(file(graph), {"x": x}, xnnpack)["y"]
    found = run(file(int8), {"x": x}, xnnpack)["y"]
    assert (np.abs(found - expected) <= bound(graph, int8, x)).all()


@pytest.mark.parametrize("kind", ["conv", "dense", "relu", "leaky relu", "difference", "product"])
def test_what_was_0_on_all_samples_or_nearly_runs(kind: str) -> None:
    """Units that are all dead, say: XNNPACK refuses to make a result of much finer steps than its operands'."""
    x, b = 100 * normal(0, 2, 6, 6, 4), Builder()
    given = b.input("x", TensorType(x.shape))
    if kind == "conv":
        op: tfl.Builtin = tfl.Conv2D((1, 1), "SAME", (1, 1), "RELU")
        made = b(op, given, b.constant(normal(1, 5, 3, 3, 4)), b.constant(np.full(5, -1e5, np.float32)))
    elif kind == "dense":
        x = x.reshape(-1, 4)
        given.type = TensorType(x.shape)
        made = b(tfl.FullyConnected("RELU"), given, b.constant(normal(1, 5, 4)), b.constant(np.full(5, -1e4, "f")))
    elif kind == "relu":
        x, made = -np.abs(x), b(tfl.Relu(), given)
    elif kind == "leaky relu":
        x, made = -np.abs(x), b(tfl.LeakyRelu(1e-4), given)
    elif kind == "difference":
        made = b(tfl.Sub(), given, b.constant(x))
    else:
        x, made = np.maximum(x, 0), b(tfl.Mul(), given, b.constant(np.where(x > 0, 0, 500).astype(np.float32)))
    b.graph.outputs = {"y": made}
    int8 = verify(quantized(b.graph, x))
    (kernel,) = (n for n in int8.nodes if isinstance(n.op, tfl.Int8))
    found = run(file(int8), {"x": x}, xnnpack=True)["y"]
    np.testing.assert_allclose(found, run(file(b.graph), {"x": x}, xnnpack=False)["y"], atol=1.1 * kernel.op.to.scale)


@pytest.mark.parametrize("coarse", [1e-3, 1e3], ids=["bias", "group"])
@pytest.mark.parametrize("read_first", [True, False])
def test_dead_layers_that_share_a_scale_run_in_any_order(read_first: bool, coarse: float) -> None:
    """What is behind `a` is as wide as `a` is made by a concatenation, of which other members may be made later.

    And as a large bias makes the weights' steps, which is all that "bias" has.
    """
    x, b = normal(0, 2, 6, 6, 4), Builder()
    given = b.input("x", TensorType(x.shape))

    def dead(of: Value, size: float, bias: float) -> Value:
        weight = size * normal(len(b.graph.nodes), 4, 1, 1, 4)
        return b(tfl.Conv2D(activation="RELU"), of, b.constant(weight), b.constant(np.full(4, bias, np.float32)))

    a = dead(given, 1e-3, -100)
    others = [lambda: dead(a, 1, -1), lambda: dead(given, coarse, -1e8 if coarse < 1 else -1e6)]
    made = [other() for other in (others if read_first else others[::-1])]
    after, late = made if read_first else made[::-1]
    b.graph.outputs = {"behind": after, "both": b(tfl.Concatenation(3), a, late)}
    nodes = verify(b.graph).nodes
    seen = ranges(b.graph, [given, *(n.output for n in nodes)], {"x": x}, len(x))
    int8 = verify(to_int8(b.graph, set(nodes), set(), seen))
    assert sum(isinstance(n.op, tfl.Int8) for n in int8.nodes) == 4
    found = run(file(int8), {"x": x}, xnnpack=True)
    assert all((found[name] == 0).all() for name in ("behind", "both"))


def test_calibration_needs_the_memory_of_a_few_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked at where it is made: a chain of any length has two that are alive at once."""
    b, x = Builder(), normal(0, 2, 16, 16, 8)
    values = [b.input("x", TensorType(x.shape))]
    for i in range(12):
        values.append(b(tfl.Conv2D(), values[-1], b.constant(normal(i, 8, 1, 1, 8)), b.constant(normal(i, 8))))
    b.graph.outputs = {"y": values[-1]}
    looked_at: list[Graph] = []

    class Watched(calibrate.StockRunner):
        def __init__(self, graph: Graph) -> None:
            super().__init__(graph)
            looked_at.append(graph)

    monkeypatch.setattr(calibrate, "StockRunner", Watched)
    seen = ranges(b.graph, values, {"x": x}, len(x))
    known = evaluate_values(b.graph, {"x": x})
    for value in values:
        low, high = float(known[value].min()), float(known[value].max())
        assert (seen[value].low, seen[value].high) == pytest.approx((low, high), rel=1e-4)
    assert interpreter_arena(file(looked_at[0])) < 3.5 * x.nbytes


@pytest.mark.parametrize("operand", [0, 1, 2], ids=["input", "weight", "bias"])
def test_a_wrong_scale_is_found(operand: int) -> None:
    """The bound above is no formality: a scale that is 20% off breaks it."""
    x = normal(1, 2, 6, 7, 8)
    graph = layer(tfl.Conv2D(), x.shape, normal(0, 16, 3, 3, 8), 5 * normal(2, 16))
    int8 = quantized(graph, x)
    allowed = bound(graph, int8, x)
    (kernel,) = (n for n in int8.nodes if isinstance(n.op, tfl.Int8))
    of = kernel.inputs[operand].type.quantization
    wrong = Quantization(tuple(1.2 * s for s in of.scales), of.zero_point, of.axis)
    for value in [kernel.inputs[operand]]:
        value.type = TensorType(value.shape, value.dtype, wrong)
    found = run(file(int8), {"x": x}, xnnpack=False)["y"] if operand != 2 else evaluated_with_bias_scale(int8, x)
    expected = run(file(graph), {"x": x}, xnnpack=False)["y"]
    assert not (np.abs(found - expected) <= allowed).all()


def evaluated_with_bias_scale(int8: Graph, x: np.ndarray) -> np.ndarray:
    """The kernels ignore what the file says of a bias: its integers count, so these are scaled."""
    (kernel,) = (n for n in int8.nodes if isinstance(n.op, tfl.Int8))
    bias = kernel.inputs[2]
    int8.constants[bias] = (int8.constants[bias] / 1.2).astype(np.int32)
    bias.type = TensorType(bias.shape, bias.dtype, kernel.op.of[2])
    return run(file(int8), {"x": x}, xnnpack=False)["y"]


@pytest.mark.parametrize("xnnpack", [True, False], ids=["xnnpack", "builtin"])
@pytest.mark.parametrize("form", ["dense", "conv", "product", "transposed"])
def test_dynamic_range_is_float32_within_its_steps(form: str, xnnpack: bool) -> None:
    """Rows keep their own range: an error of half a step of each row, of which a kernel may use only 127."""
    b = Builder()
    w = normal(0, 24, 16) if form in ("dense", "product") else normal(0, 24, 3, 3, 16)
    x = (
        normal(1, 5, 16 if form == "dense" else 24)
        if w.ndim == 2
        else normal(1, 2, 6, 7, 24 if form == "transposed" else 16)
    )
    x *= np.exp(normal(2, len(x), *(1,) * (x.ndim - 1)))  # rows of very different sizes
    of, stored = of_weight(w, 0) if form in ("dense", "conv") else (UNSCALED, np.rint(w * 50).astype(np.int8))
    value = b.input("x", TensorType(x.shape))
    if form == "transposed":
        stored = np.ascontiguousarray(stored.transpose(3, 1, 2, 0))
        y = b(tfl.DynamicRange((of, None), tfl.TransposeConv((2, 6, 7, 16))), b.quantized(stored, of), value)
    elif form == "conv":
        bias = b.constant(np.zeros(24, np.float32))
        y = b(tfl.DynamicRange((None, of, None), tfl.Conv2D()), value, b.quantized(stored, of), bias)
    else:
        op = tfl.FullyConnected() if form == "dense" else tfl.BatchMatmul()
        y = b(tfl.DynamicRange((None, of), op), value, b.quantized(stored, of))
    b.graph.outputs = {"y": y}
    expected = evaluate(verify(b.graph), {"x": x})[0]["y"]
    found = run(file(b.graph), {"x": x}, xnnpack)["y"]
    step = np.abs(x).max(tuple(range(1, x.ndim)), keepdims=True) / 127
    largest = np.abs(of.real(stored)).sum() / (24 if form in ("dense", "conv") else 16)
    assert (np.abs(found - expected) <= 3 * step * largest).all()
    size = np.sqrt(np.square(expected).mean(tuple(range(1, x.ndim))))
    error = np.sqrt(np.square(found - expected).mean(tuple(range(1, x.ndim))))
    assert (error < 0.02 * size).all(), error / size


def test_extreme_channels_keep_their_bias() -> None:
    """A channel whose weights are next to nothing: its bias would overflow int32 at the weights' own scale."""
    w, bias = normal(0, 4, 1, 1, 8), np.array([3.0, -2.0, 1.0, 0.0], np.float32)
    w[1] *= 1e-12
    w[2] = 0
    x = normal(1, 1, 4, 4, 8)
    graph = layer(tfl.Conv2D(), x.shape, w, bias)
    int8 = quantized(graph, x)
    for xnnpack in (True, False):
        found, expected = (run(file(g), {"x": x}, xnnpack)["y"] for g in (int8, graph))
        np.testing.assert_allclose(found[..., 1:], expected[..., 1:], atol=0.05)
    assert all(step.delegated for step in execution(file(int8)))


def test_scales() -> None:
    assert of_range(0.5, 2.0).zero_point == -128, "0 is always there"
    assert of_range(-1, 1).real(of_range(-1, 1).stored(np.zeros(1))) == 0
    assert of_range(0, 0).scale > 0
    of_w, _ = of_weight(normal(0, 3, 5), 0)
    of_x = of_range(-1, 1)
    of_b, stored = of_bias(np.ones(3), of_x, of_w)
    np.testing.assert_allclose(of_b.real(stored), 1, atol=max(of_b.scales))


@pytest.mark.parametrize(
    ("activation", "cuts", "pools"), [("RELU", False, True), ("RELU6", True, True), ("NONE", False, False)]
)
def test_a_padded_pool_is_int8_where_zeros_serve_as_padding(activation: str, cuts: bool, pools: bool) -> None:
    """Not where numbers may be negative: a scale for the padding, too, would leave nothing of them."""
    b, x = Builder(), normal(0, 4, 24, 24, 8)

    def conv(v, seed: int, activation: str):  # type: ignore[no-untyped-def]
        w, bias = b.constant(normal(seed, 32, 3, 3, v.shape[3]) / 9), b.constant(normal(seed + 1, 32))
        return b(tfl.Conv2D((1, 1), "SAME", activation=activation), v, w, bias)

    y = conv(b.input("x", TensorType(x.shape)), 1, activation)
    if cuts:  # what moves numbers makes none negative
        y = b(tfl.Reshape(y.shape), b(tfl.Slice((0, 0, 0, 0), y.shape), b(tfl.Concatenation(3), y)))
    padded = b(tfl.PadV2(((0, 0), (1, 1), (1, 1), (0, 0)), -3e38), y)
    b.graph.outputs = {"y": conv(b(tfl.MaxPool2D((3, 3), (2, 2), "VALID"), padded), 3, "NONE")}
    found, layers = quantize_prefix(b.graph, {"x": x}, len(x), target("litert-2"))
    assert {layer.form for layer in layers} == {"int8"}
    (pool,) = (node for node in found.nodes if node.op.code == "MAX_POOL_2D")
    assert (pool.output.dtype == np.int8) == pools
    expected = run(file(b.graph), {"x": x}, xnnpack=True)["y"]
    np.testing.assert_allclose(
        run(file(found), {"x": x}, xnnpack=True)["y"], expected, atol=0.03 * np.abs(expected).max()
    )
