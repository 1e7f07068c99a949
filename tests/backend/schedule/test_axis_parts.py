"""Values some places at a time: the same numbers, and less memory where that is what it is for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.schedule.along import axes_along
from converter.backend.schedule.axis_parts import region_in_parts, region_of
from converter.backend.schedule.growth import by_growth, most_at_once
from converter.ir import BOOL, Builder, Graph, TensorType, Value, evaluate
from converter.ir.types import Quantization
from tests.backend.builtins.cases import Case, all_cases, floats

Feed = dict[str, np.ndarray]


def with_made_operands(case: Case) -> tuple[Graph, Feed, list[Value]]:
    """A graph of one operator whose operands operators make, but for those that are constant; and these operands."""
    b, feed, operands = Builder(), {}, []
    for i, array in enumerate(case.arrays):
        if i in case.constants:
            operands.append(b.constant(array))
            continue
        feed[f"x{i}"] = array
        given = b.input(f"x{i}", TensorType(array.shape, array.dtype))
        operands.append(b(tfl.Reshape(array.shape), given) if array.ndim else given)
    b.graph.outputs = {"y": b(case.op, *operands)}
    return b.graph, feed, operands


def cuts() -> Iterator[tuple[Case, Graph, Feed, Value, int]]:
    """Every axis that a builtin treats place by place, as that of its result or of what it adds up over."""
    padded = Case(tfl.Pad(((0, 0), (1, 2), (0, 0))), (floats(2, 3, 4),))
    known = set()
    for case in (*all_cases(), padded):
        if isinstance(case.op.infer(*(TensorType(a.shape, a.dtype) for a in case.arrays)), tuple):
            continue
        graph, feed, operands = with_made_operands(case)
        for along in axes_along(graph.nodes[-1]):
            if (type(case.op), along) in known:
                continue
            known.add((type(case.op), along))
            if along.result is not None:
                yield case, graph, feed, graph.outputs["y"], along.result
            else:
                place = next(i for i, axis in enumerate(along.operands) if axis is not None)
                yield case, graph, feed, operands[place], along.operands[place]


def same(graph: Graph, cut: Graph, feed: Feed) -> None:
    wanted, found = evaluate(graph, feed)[0], evaluate(cut, feed)[0]
    for name, want in wanted.items():
        if want.dtype.kind == "f":
            scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
            np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=2e-6 * scale)
        else:
            np.testing.assert_array_equal(found[name], want)


@pytest.mark.quick
def test_every_builtin_gives_the_same_in_parts() -> None:
    kinds = set()
    for case, graph, feed, value, axis in cuts():
        if value not in graph.producers() or value.shape[axis] < 2:
            continue
        region = region_of(graph, value, axis)
        assert region is not None, case
        for width in {1, -(-value.shape[axis] // 2)}:
            cut = region_in_parts(graph, region, width)
            assert cut is not None
            assert len(cut.nodes) > len(graph.nodes)
            same(graph, cut, feed)
        kinds.add(type(case.op))
    assert {tfl.Conv2D, tfl.DepthwiseConv2D, tfl.FullyConnected, tfl.Transpose, tfl.Pad} <= kinds
    assert len(kinds) > 40


def step() -> tuple[Graph, Feed]:
    """A 1x1 convolution and a mean, forward and backward, as a step has it."""
    rng, b = np.random.default_rng(0), Builder()
    feed = {
        "q": rng.integers(-128, 128, (1, 6, 5, 7)).astype(np.float32) / 32,
        "w": rng.standard_normal((40, 1, 1, 7), np.float32),
        "b": rng.standard_normal(40, np.float32),
        "g": rng.standard_normal((1, 40), np.float32),
    }
    q, w, bias, g = (b.input(name, TensorType(array.shape)) for name, array in feed.items())
    scale = Quantization((1 / 32,), 0)
    x = b(tfl.Dequantize((scale,)), b(tfl.Quantize(scale), q))
    y = b(tfl.Conv2D(activation="RELU"), x, w, bias)
    positive = b(tfl.Greater(), y, np.zeros(1, np.float32))
    dy = b(tfl.SelectV2(), positive, g, np.zeros(1, np.float32))
    turned = [b(tfl.Transpose((3, 0, 1, 2)), v) for v in (dy, x)]
    dw = b(tfl.Conv2D(padding="VALID"), *turned, b.constant(np.zeros(7, np.float32)))
    b.graph.outputs = {
        "loss": b(tfl.Mean((1, 2)), y),
        "w2": b(tfl.Sub(), w, dw),
        "b2": b(tfl.Sub(), bias, b(tfl.Sum((0, 1, 2)), dy)),
        "positive": positive,
    }
    return b.graph, feed


@pytest.mark.parametrize("width", [3, 7, 20])
@pytest.mark.parametrize(("made", "axis"), [(tfl.Conv2D, 3), (tfl.Dequantize, 3), (tfl.Greater, 1), (tfl.SelectV2, 2)])
def test_a_step_gives_the_same_in_parts(made: type, axis: int, width: int) -> None:
    graph, feed = step()
    value = next(node.output for node in graph.nodes if isinstance(node.op, made))
    region = region_of(graph, value, axis)
    assert region is not None
    assert region_in_parts(graph, region, region.width) is None
    cut = region_in_parts(graph, region, min(width, region.width - 1))
    assert cut is not None
    for ordered in (cut, by_growth(cut)):
        same(graph, ordered, feed)


@pytest.mark.parametrize("width", [3, 8])
def test_int8_layers_give_the_same_integers_in_parts(width: int) -> None:
    """Filters and biases have a scale for each channel: each part has those of its own."""
    rng, b = np.random.default_rng(1), Builder()
    x, wide, narrow = Quantization((1 / 32,), 3), Quantization((0.05,), -7), Quantization((0.04,), 5)
    q = b(tfl.Quantize(x), b.input("x", TensorType((1, 6, 5, 4))))

    def layer(op: tfl.Builtin, value: Value, of: Quantization, to: Quantization, shape: tuple[int, ...]) -> Value:
        axis = 3 if isinstance(op, tfl.DepthwiseConv2D) else 0
        scales = rng.uniform(0.002, 0.02, shape[axis])
        of_w, of_b = Quantization(tuple(scales), 0, axis), Quantization(tuple(scales * of.scale))
        w = b.quantized(rng.integers(-127, 128, shape).astype(np.int8), of_w)
        bias = b.quantized(rng.integers(-900, 900, shape[axis]).astype(np.int32), of_b)
        return b(tfl.Int8((of, of_w, of_b), op, to), value, w, bias)

    y = layer(tfl.Conv2D(activation="RELU"), q, x, wide, (16, 1, 1, 4))
    z = layer(tfl.DepthwiseConv2D(), y, wide, narrow, (1, 3, 3, 16))
    b.graph.outputs = {"z": b(tfl.Dequantize((narrow,)), z)}
    region = region_of(b.graph, y, 3)
    assert region is not None
    cut = region_in_parts(b.graph, region, width)
    assert cut is not None
    assert not any(v.shape == y.shape for node in cut.nodes for v in node.outputs if node.op.code == "CONV_2D")
    feed = {"x": rng.standard_normal((1, 6, 5, 4), np.float32)}
    np.testing.assert_array_equal(evaluate(cut, feed)[0]["z"], evaluate(b.graph, feed)[0]["z"])


def test_less_is_there_at_once() -> None:
    graph, _ = step()
    del graph.outputs["positive"]  # nobody else reads what is in parts
    value = next(node.output for node in graph.nodes if isinstance(node.op, tfl.Conv2D))
    region = region_of(graph, value, 3)
    assert region is not None
    cut = region_in_parts(graph, region, 10)
    assert cut is not None
    before, after = (most_at_once(of)[0] for of in (by_growth(graph), cut))
    assert after < 0.7 * before
    assert not any(v.shape == value.shape for node in cut.nodes for v in node.outputs)


def test_what_is_needed_along_two_axes_is_left_whole() -> None:
    """A square minus itself transposed: some rows of the one are columns of the other."""
    b = Builder()
    x = b(tfl.Neg(), b.input("x", TensorType((6, 6))))
    b.graph.outputs = {"y": b(tfl.Sub(), x, b(tfl.Transpose((1, 0)), x))}
    assert region_of(b.graph, x, 0) is None


def test_most_at_once_counts_inputs_until_they_are_read() -> None:
    b = Builder()
    x, mask = b.input("x", TensorType((100,))), b.input("m", TensorType((100,), BOOL))
    y = b(tfl.Neg(), x)
    z = b(tfl.SelectV2(), mask, y, np.zeros(1, np.float32))
    b.graph.outputs = {"z": z}
    most, there = most_at_once(b.graph)
    assert (most, set(there)) == (900, {x, y, mask})  # then x is gone
