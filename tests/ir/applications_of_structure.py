"""Random valid applications of the ops that move data, multiply, convolve, pool and loop."""

from __future__ import annotations

from functools import partial

import numpy as np

from converter.ir import FLOAT32, INT4, Builder, Graph, Op, TensorType, ops
from converter.ir.quantization import UNSCALED, Quantization
from tests.ir.applications import Application, Numbers, applies


@applies(ops.Reshape)
def _reshape(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape()
    return Application(ops.Reshape(tuple(int(d) for d in n.rng.permutation(shape))), [n.any(*shape)])


@applies(ops.Transpose)
def _transpose(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    return Application(ops.Transpose(tuple(int(a) for a in n.rng.permutation(len(shape)))), [n.any(*shape)])


@applies(ops.BroadcastTo)
def _broadcast(n: Numbers, kind: type[Op]) -> Application:
    whole, narrow = sorted(n.pair(), key=lambda s: (len(s), int(np.prod(s))), reverse=True)
    return Application(ops.BroadcastTo(whole), [n.any(*narrow)])


@applies(ops.Slice)
def _slice(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    begin = tuple(n.whole(0, d - 1) for d in shape)
    strides = tuple(n.whole(1, 3) for _ in shape) if n.flag() else ()
    room = [(d - s - 1) // t + 1 for d, s, t in zip(shape, begin, strides or (1,) * len(shape), strict=True)]
    return Application(ops.Slice(begin, tuple(n.whole(1, r) for r in room), strides), [n.any(*shape)])


@applies(ops.Pad)
def _pad(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 4)
    paddings = tuple((n.whole(0, 2), n.whole(0, 2)) for _ in shape)
    x = n.any(*shape)
    return Application(ops.Pad(paddings, 1.5 if x.dtype == FLOAT32 and n.flag() else 0.0), [x])


@applies(ops.Dilate)
def _dilate(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 4)
    return Application(ops.Dilate(tuple(n.whole(1, 3) for _ in shape)), [n.floats(*shape)])


@applies(ops.Concat)
def _concat(n: Numbers, kind: type[Op]) -> Application:
    shape = list(n.shape(1))
    axis = n.whole(0, len(shape) - 1)
    first = n.any(*shape)
    sizes = [n.whole(1, 4) for _ in range(n.whole(0, 5))]
    rest = [n.of(first.dtype, *shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    return Application(ops.Concat(axis), [first, *rest])


@applies(ops.Reverse)
def _reverse(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    return Application(ops.Reverse(tuple(sorted(n.axes(len(shape))))), [n.any(*shape)])


@applies(ops.Gather)
def _gather(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 4)
    axis = n.whole(0, len(shape) - 1)
    return Application(ops.Gather(axis), [n.any(*shape), n.whole_numbers(*n.shape(1, 2), low=0, high=shape[axis] - 1)])


@applies(ops.ScatterAdd)
def _scatter(n: Numbers, kind: type[Op]) -> Application:
    rows, count = n.whole(1, 5), n.whole(1, 5)
    return Application(kind(rows), [n.whole_numbers(count, low=0, high=rows - 1), n.number(count, *n.shape(0, 3))])


@applies(ops.SegmentMax, ops.SegmentMin, ops.SegmentProd)
def _segment(n: Numbers, kind: type[Op]) -> Application:
    drawn = _scattered(n, kind)
    return Application(drawn.op, drawn.operands, smooth=False)


def _scattered(n: Numbers, kind: type[Op]) -> Application:
    rows, count = n.whole(1, 5), n.whole(1, 5)
    return Application(kind(rows), [n.whole_numbers(count, low=0, high=rows - 1), n.number(count, *n.shape(0, 3))])


@applies(ops.TopIndices)
def _top(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 4)
    return Application(ops.TopIndices(n.whole(1, shape[-1])), [n.number(*shape)])


@applies(ops.UpdateSlice)
def _update(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 4)
    box = tuple(n.whole(1, d) for d in shape)
    starts = np.array([n.whole(0, d - k) for d, k in zip(shape, box, strict=True)], np.int32)
    x = n.any(*shape)
    return Application(ops.UpdateSlice(), [x, n.of(x.dtype, *box), starts])


@applies(ops.OneHot, ops.IsClass)
def _classes(n: Numbers, kind: type[Op]) -> Application:
    return Application(kind(n.whole(1, 5)), [n.whole_numbers(*n.shape(0, 4), low=-1, high=5)])


@applies(ops.Pick)
def _pick(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 4)
    return Application(ops.Pick(), [n.floats(*shape), n.whole_numbers(*shape[:-1], low=-1, high=5)])


@applies(ops.Chosen)
def _chosen(n: Numbers, kind: type[Op]) -> Application:
    shape, place = n.shape(1, 4), n.whole(0, 1)
    operands = [n.floats(*shape), n.floats(*shape)]
    operands[place] = np.asarray(n.bools(*shape) * n.whole(1, 3), np.float32)
    return Application(ops.Chosen(mask=place), operands, constants={place: None})


@applies(ops.MatMul)
def _matmul(n: Numbers, kind: type[Op]) -> Application:
    m, k, c = (n.whole(1, 5) for _ in range(3))
    batch, adj_x, adj_y = n.shape(0, 2), n.flag(), n.flag()
    x = n.floats(*batch, *((k, m) if adj_x else (m, k)))
    w = n.floats(*(() if n.flag() else batch), *((c, k) if adj_y else (k, c)))
    return Application(ops.MatMul(adj_x, adj_y), [x, w])


def _quantized(n: Numbers, real: np.ndarray, channels: int) -> tuple[np.ndarray, Quantization]:
    of = Quantization(tuple(float(s) for s in n.rng.uniform(0.01, 0.02, channels)))
    return of.stored(real), of


@applies(ops.Real)
def _real(n: Numbers, kind: type[Op]) -> Application:
    stored, of = _quantized(n, n.floats(*n.shape(2)), 1)
    return Application(ops.Real(of), [stored], {0: of}, smooth=False)


@applies(ops.Nearest)
def _nearest(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.Nearest(UNSCALED), [np.float32(100 * n.floats(*n.shape(2)))], smooth=False)


@applies(ops.Int8MatMul)
def _int8_matmul(n: Numbers, kind: type[Op]) -> Application:
    k, c = n.whole(2, 6), n.whole(1, 5)
    w, of = _quantized(n, n.floats(c, k), c)
    return Application(ops.Int8MatMul(of), [n.floats(n.whole(1, 4), k), w], {1: of}, smooth=False, tolerance=0.03)


def _integers(n: Numbers, *shape: int) -> np.ndarray:
    """Integers of four or eight bits, as they stand for themselves."""
    return n.rng.integers(-7, 8, shape).astype((INT4, np.int8)[n.whole(0, 1)])


@applies(ops.CastMatMul)
def _cast_matmul(n: Numbers, kind: type[Op]) -> Application:
    k, c, adj_y = n.whole(1, 5), n.whole(1, 5), n.flag()
    w = _integers(n, *((c, k) if adj_y else (k, c)))
    scales = _scales_of_blocks(n, w)
    x = n.floats(*n.shape(1, 3), n.whole(1, 4), k)
    return Application(ops.CastMatMul(adj_y), [x, w, *scales], dict.fromkeys([1, 2] if scales else [1]))


@applies(ops.DynamicRangeMatMul)
def _dynamic_range_matmul(n: Numbers, kind: type[Op]) -> Application:
    w = n.rng.integers(-7, 8, (n.whole(1, 5), 2 * n.whole(1, 3))).astype(INT4)
    x = n.floats(*n.shape(1, 3), n.whole(1, 4), w.shape[1])
    return Application(ops.DynamicRangeMatMul(), [x, w], {1: None}, smooth=False, tolerance=0.03)


def _scales_of_blocks(n: Numbers, w: np.ndarray) -> list[np.ndarray]:
    """One for each number or each row of a matrix, or none: its rows may have any length."""
    blocks = (0, 1, w.shape[1])[n.whole(0, 2)]
    return [n.floats(len(w), blocks)] if blocks else []


@applies(ops.CastGather)
def _cast_gather(n: Numbers, kind: type[Op]) -> Application:
    rows = n.whole(1, 5)
    indices = n.whole_numbers(*n.shape(1, 2), low=0, high=rows - 1)
    table = _integers(n, rows, n.whole(1, 5))
    scales = _scales_of_blocks(n, table)
    known = dict.fromkeys([0, 2] if scales else [0])
    return Application(ops.CastGather(), [table, indices, *scales], known)


def _window(n: Numbers) -> tuple[tuple[int, int], tuple[int, int], tuple[tuple[int, int], tuple[int, int]], tuple]:
    """Kernel, strides, padding, dilation."""
    kernel, strides, dilation = ((n.whole(1, 3), n.whole(1, 3)) for _ in range(3))
    padding = ((n.whole(0, 2), n.whole(0, 2)), (n.whole(0, 2), n.whole(0, 2)))
    return kernel, strides, padding, dilation if n.flag() else (1, 1)


def _image(n: Numbers, channels: int) -> np.ndarray:
    return n.floats(n.whole(1, 2), n.whole(7, 9), n.whole(7, 9), channels)


@applies(ops.Conv2D, ops.Conv2DInputGrad, ops.Conv2DFilterGrad)
def _conv(n: Numbers, kind: type[Op]) -> Application:
    kernel, *attributes = _window(n)
    x, w = _image(n, n.whole(1, 3)), n.floats(n.whole(1, 4), *kernel, 1)
    w = np.repeat(w, x.shape[3], 3) * n.floats(x.shape[3])
    made = ops.Conv2D(*attributes).infer(TensorType(x.shape), TensorType(w.shape)).shape
    if kind is ops.Conv2D:
        return Application(ops.Conv2D(*attributes), [x, w])
    if kind is ops.Conv2DInputGrad:
        return Application(ops.Conv2DInputGrad(*attributes, size=x.shape[1:3]), [n.floats(*made), w])
    return Application(ops.Conv2DFilterGrad(*attributes, kernel=kernel), [x, n.floats(*made)], smooth=False)


@applies(ops.Int8Conv2D)
def _int8_conv(n: Numbers, kind: type[Op]) -> Application:
    kernel, strides, padding, _ = _window(n)
    channels = n.whole(1, 4)
    x = _image(n, 3)
    w, of = _quantized(n, n.floats(channels, *kernel, 3), channels)
    op = ops.Int8Conv2D(strides, padding, (1, 1), of)
    return Application(op, [x, w], {1: of}, smooth=False, tolerance=0.03)


@applies(ops.Int8Conv2DInputGrad)
def _int8_conv_grad(n: Numbers, kind: type[Op]) -> Application:
    kernel, strides, padding, _ = _window(n)
    x, w = _image(n, 3), n.whole_numbers(2, *kernel, 3, low=-127, high=127).astype(np.int8)
    made = ops.Conv2D(strides, padding).infer(TensorType(x.shape), TensorType(w.shape)).shape
    op = ops.Int8Conv2DInputGrad(strides, padding, size=x.shape[1:3])
    return Application(op, [n.floats(*made), w], {1: UNSCALED}, smooth=False, tolerance=0.03)


@applies(ops.DepthwiseConv2D, ops.DepthwiseInputGrad, ops.DepthwiseFilterGrad)
def _depthwise(n: Numbers, kind: type[Op]) -> Application:
    kernel, *attributes = _window(n)
    x = _image(n, n.whole(1, 3))
    many = n.whole(1, 2) if kind is ops.DepthwiseConv2D else 1
    w = n.floats(1, *kernel, x.shape[3] * many)
    made = ops.DepthwiseConv2D(*attributes).infer(TensorType(x.shape), TensorType(w.shape)).shape
    if kind is ops.DepthwiseConv2D:
        return Application(ops.DepthwiseConv2D(*attributes), [x, w])
    if kind is ops.DepthwiseInputGrad:
        return Application(ops.DepthwiseInputGrad(*attributes, size=x.shape[1:3]), [n.floats(*made), w], smooth=False)
    return Application(ops.DepthwiseFilterGrad(*attributes, kernel=kernel), [x, n.floats(*made)], smooth=False)


@applies(ops.MaxPool2D, ops.SumPool2D, ops.MaxPoolGrad)
def _pool(n: Numbers, kind: type[Op]) -> Application:
    window, strides = ((n.whole(1, 3), n.whole(1, 3)) for _ in range(2))
    padding = tuple((n.whole(0, k - 1), n.whole(0, k - 1)) for k in window)
    x = _image(n, n.whole(1, 3))
    if kind is not ops.MaxPoolGrad:
        return Application(kind(window, strides, padding), [x])
    y = ops.MaxPool2D(window, strides, padding).evaluate(x)
    return Application(kind(window, strides, padding), [x, y, n.floats(*y.shape)], smooth=False)


def _body(inputs: list[TensorType], build: partial) -> Graph:
    b = Builder()
    values = [b.input(f"operand_{k}", t) for k, t in enumerate(inputs)]
    b.graph.outputs = {f"result_{k}": v for k, v in enumerate(build(b, *values))}
    return b.graph


@applies(ops.Scan)
def _scan(n: Numbers, kind: type[Op]) -> Application:
    shape, length = n.shape(0, 2), n.whole(1, 5)
    own = TensorType(shape)

    def step(b: Builder, fixed, carried, row):  # type: ignore[no-untyped-def]
        after = b(ops.Tanh(), b(ops.Add(), b(ops.Mul(), fixed, carried), row))
        return after, b(ops.Mul(), after, carried)

    op = ops.Scan(_body([own, own, own], step), length, 1, 1, n.flag())
    return Application(op, [n.floats(*shape), n.floats(*shape), n.floats(length, *shape)])


@applies(ops.While)
def _while(n: Numbers, kind: type[Op]) -> Application:
    shape, steps = n.shape(0, 2), n.whole(0, 6)
    types = [TensorType(shape), TensorType((), np.dtype(np.int32)), TensorType(shape)]
    condition = _body(types, lambda b, fixed, count, x: (b(ops.Less(), count, steps),))
    body = _body(types, lambda b, fixed, count, x: (b(ops.Add(), count, 1), b(ops.Sin(), b(ops.Mul(), fixed, x))))
    start = np.asarray(0, np.int32)
    return Application(ops.While(condition, body, steps + n.whole(1, 3)), [n.floats(*shape), start, n.floats(*shape)])


@applies(ops.CustomGradient)
def _custom(n: Numbers, kind: type[Op]) -> Application:
    """What passes x^2 through, x being argument and residual, with the derivative of that."""
    own = TensorType(n.shape())
    backward = _body([own, own], lambda b, x, dy: (b(ops.Mul(), b(ops.Mul(), x, 2.0), dy),))
    backward.outputs = {"0": backward.outputs["result_0"]}
    x = n.floats(*own.shape)
    return Application(ops.CustomGradient(1, 1, backward), [x, x, x * x], smooth=False)
