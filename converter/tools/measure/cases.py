"""Microbenchmark cases: the operators that a target's table prices, each alone on several shapes.

A form is measured on shapes small enough to stay in the caches, unless its name says `beyond`; the table has the median
cost of one multiply-accumulate or of one byte read or written. Products are of whole tiles, as a target counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.emit.emit import Subgraph, emit
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.lower import lower
from converter.backend.targets import Target
from converter.ir import INT4, INT8, Graph, Shape, TensorType, Value
from converter.ir.scales import of_bias, of_range, of_weight

#: Lowering asks for costs only where it chooses; here every form is emitted by hand.
_NO_TARGET = Target("none", "", {}, {}, {}, 0, 1, 1, 0, 0, 0, 0)
#: m, k, n.
_PRODUCTS = ((256, 256, 256), (128, 64, 512), (392, 96, 64))
#: Images, size, filter, channels of the image and of the result.
_CONVOLUTIONS = ((1, 32, 3, 32, 32), (2, 14, 3, 64, 64), (1, 28, 1, 96, 32), (2, 7, 1, 160, 320))
#: Images, size, channels, stride.
_DEPTHWISE = ((2, 28, 192, 1), (2, 14, 384, 2))


@dataclass(frozen=True)
class Case:
    """One graph of a form.

    Attributes:
        form: its figure in the tables; `compare + select` and names with ` beyond` are what `fitted` makes figures of.
        shape: what is measured, for the report.
        work: multiply-accumulates, or bytes read and written.
        emit: adds the operators to a graph and returns what they compute.
    """

    form: str
    shape: str
    work: int
    emit: Callable[[Lowering], Value]


def cases() -> list[Case]:
    """Return all cases, always in the same order."""
    return [*_products(), *_convolutions(), *_integers(), *_movements()]


def _weight(c: Lowering, form: str, *shape: int) -> Value:
    """Return a weight that is constant or arrives at run time, as the form's name says."""
    if form.endswith(".constant"):
        return c.constant(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    return c.input("w", TensorType(shape))


def _bias(c: Lowering, channels: int) -> Value:
    """Return the zero bias that convolutions need."""
    return c.constant(np.zeros(channels, np.float32))


def _dense(form: str, m: int, k: int, n: int, c: Lowering) -> Value:
    return c(tfl.FullyConnected(), c.input("x", TensorType((m, k))), _weight(c, form, n, k))


def _matmul(adj_x: bool, adj_y: bool, m: int, k: int, n: int, c: Lowering) -> Value:
    x = c.input("x", TensorType((k, m) if adj_x else (m, k)))
    return c(tfl.BatchMatmul(adj_x, adj_y), x, c.input("w", TensorType((n, k) if adj_y else (k, n))))


def _products() -> list[Case]:
    """Matrix products [m, k] x [k, n]."""
    found = []
    for m, k, n in _PRODUCTS:
        macs, shape = m * k * n, f"{m}x{k}x{n}"
        for form in ("fully_connected.constant", "fully_connected.runtime"):
            found.append(Case(form, shape, macs, partial(_dense, form, m, k, n)))
        for note, adjoint in (("", (False, False)), (" x'", (True, False)), (" w'", (False, True))):
            found.append(Case("batch_matmul", shape + note, macs, partial(_matmul, *adjoint, m, k, n)))
    return found


def gemm() -> Case:
    """Return the large constant product whose rate whole steps are compared with."""
    m, k, n = 1024, 768, 768
    form = "fully_connected.constant"
    return Case(form, "", m * k * n, partial(_dense, form, m, k, n))


def _convolution(form: str, n: int, size: int, k: int, i: int, o: int, c: Lowering) -> Value:
    x = c.input("x", TensorType((n, size, size, i)))
    return c(tfl.Conv2D((1, 1), "SAME"), x, _weight(c, form, o, k, k, i), _bias(c, o))


def _transposed(form: str, n: int, size: int, k: int, i: int, o: int, c: Lowering) -> Value:
    dy = c.input("dy", TensorType((n, size, size, o)))
    return c(tfl.TransposeConv((n, size, size, i), (1, 1), "SAME"), _weight(c, form, i, k, k, o), dy)


def _depthwise(form: str, n: int, size: int, channels: int, stride: int, c: Lowering) -> Value:
    x = c.input("x", TensorType((n, size, size, channels)))
    return c(tfl.DepthwiseConv2D((stride, stride), "SAME"), x, _weight(c, form, 1, 3, 3, channels), _bias(c, channels))


def _convolutions() -> list[Case]:
    """Convolutions n x size^2 x i -> o with k x k filters, and the transposed ones."""
    found = []
    for n, size, k, i, o in _CONVOLUTIONS:
        macs, shape = n * size * size * k * k * i * o, f"{n}x{size}x{size}x{i}->{o} {k}x{k}"
        for kind in ("constant", "runtime"):
            form = f"conv.{kind}"
            found.append(Case(form, shape, macs, partial(_convolution, form, n, size, k, i, o)))
            form = f"transpose_conv.{kind}"
            found.append(Case(form, shape, macs, partial(_transposed, form, n, size, k, i, o)))
    for n, size, channels, stride in _DEPTHWISE:
        macs, shape = n * (size // stride) ** 2 * 9 * channels, f"{n}x{size}x{size}x{channels} 3x3/{stride}"
        for form in ("depthwise.constant", "depthwise.runtime"):
            found.append(Case(form, shape, macs, partial(_depthwise, form, n, size, channels, stride)))
    return found


def _int8(op: tfl.Builtin, x: Shape, w: Shape, axis: int, c: Lowering) -> Value:
    of_x, of_y = of_range(-4, 4), of_range(-40, 40)
    of_w, stored = of_weight(np.random.default_rng(0).standard_normal(w), axis)
    of_b, zeros = of_bias(np.zeros(w[axis]), of_x, of_w)
    operands = c.input("x", TensorType(x, INT8, of_x)), c.quantized(stored, of_w), c.quantized(zeros, of_b)
    return c(tfl.Int8((of_x, of_w, of_b), op, of_y), *operands)


def _dynamic(op: tfl.Builtin, x: Shape, w: Shape, axis: int, c: Lowering) -> Value:
    of_w, stored = of_weight(np.random.default_rng(0).standard_normal(w), axis)
    operands = c.input("x", TensorType(x)), c.quantized(stored, of_w), _bias(c, w[axis])
    return c(tfl.DynamicRange((None, of_w, None), op), *operands)


def _integers() -> list[Case]:
    """Return the same layers with int8 weights, between int8 activations (`int8`) and float32 ones (`dynamic`)."""
    layers: list[tuple[str, str, tfl.Builtin, Shape, Shape]] = []
    for m, k, n in _PRODUCTS:
        layers.append(("fully_connected", f"{m}x{k}x{n}", tfl.FullyConnected(), (m, k), (n, k)))
    for images, size, k, i, o in _CONVOLUTIONS:
        shape = f"{images}x{size}x{size}x{i}->{o} {k}x{k}"
        layers.append(("conv", shape, tfl.Conv2D(), (images, size, size, i), (o, k, k, i)))
    for images, size, channels, stride in _DEPTHWISE:
        shape = f"{images}x{size}x{size}x{channels} 3x3/{stride}"
        of_images, of_filter = (images, size, size, channels), (1, 3, 3, channels)
        layers.append(("depthwise", shape, tfl.DepthwiseConv2D((stride, stride)), of_images, of_filter))
    found = []
    for kind, shape, op, x, w in layers:
        axis = 3 if kind == "depthwise" else 0
        types = TensorType(x), TensorType(w), TensorType((w[axis],))
        work = op.cost(types, (op.infer(*types),)).flops // 2  # type: ignore[arg-type]
        found.append(Case(f"{kind}.int8", shape, work, partial(_int8, op, x, w, axis)))
        if kind != "depthwise":
            found.append(Case(f"{kind}.dynamic", shape, work, partial(_dynamic, op, x, w, axis)))
    return found


def _movements() -> list[Case]:
    """Return what moves [images, side, side, 64]: small enough for the cache, and `beyond` it."""
    found = []
    for images, place in ((1, ""), (32, " beyond")):
        side, channels = 28, 64
        kind = TensorType((images, side, side, channels))
        n = kind.nbytes

        def delegated(c: Lowering, kind: TensorType = kind) -> Value:
            x, y = c.input("x", kind), c.input("y", kind)
            for _ in range(8):
                x = c(tfl.Mul(), x, y)
            return x

        def window(c: Lowering, kind: TensorType = kind) -> Value:
            size = (kind.shape[0], kind.shape[1] - 2, kind.shape[2] - 2, kind.shape[3])
            return c(tfl.Slice((0, 1, 1, 0), size), c.input("x", kind))

        def planes(c: Lowering, kind: TensorType = kind) -> Value:
            images, rows, columns, channels = kind.shape
            x = c.reshape(c.input("x", kind), (images * rows // 2, 2, columns // 2, 2, channels))
            return c(tfl.Transpose((3, 1, 0, 2, 4)), x)

        def transpose(c: Lowering, kind: TensorType = kind) -> Value:
            return c(tfl.Transpose((1, 0)), c.reshape(c.input("x", kind), (kind.size // kind.shape[3], kind.shape[3])))

        def packed(c: Lowering, kind: TensorType = kind) -> Value:
            matrix = c.reshape(c.input("x", kind), (kind.size // 512, 512))
            return c(tfl.BatchMatmul(), c.input("row", TensorType((1, matrix.shape[0]))), matrix)

        def unpacked(c: Lowering, kind: TensorType = kind) -> Value:
            matrix = np.random.default_rng(0).integers(-7, 8, (kind.size // 512, 512)).astype(INT4)
            return c(tfl.CastWeight(), c.constant(matrix))

        def compare(c: Lowering, kind: TensorType = kind) -> Value:
            return c(tfl.Greater(), c.input("x", kind), 0.0)

        def select(c: Lowering, kind: TensorType = kind) -> Value:
            x, y = c.input("x", kind), c.input("y", kind)
            return c(tfl.SelectV2(), c(tfl.Greater(), y, 0.0), x, 0.0)

        shape = f"{images}x{side}x{side}x{channels}"
        found.append(Case(f"delegated{place}", f"{shape} MUL", 8 * 3 * n, delegated))
        found.append(Case(f"delegated{place}", f"{shape} SLICE", 2 * n * (side - 2) ** 2 // side**2, window))
        found.append(Case(f"shuffled{place}", f"{shape} planes", 2 * n, planes))
        found.append(Case(f"transpose{place}", shape, 2 * n, transpose))
        found.append(Case(f"packed{place}", f"{shape} as [k, 512]", n, packed))
        found.append(Case(f"unpacked{place}", f"{shape} int4", n + n // 8, unpacked))
        found.append(Case(f"compare{place}", shape, n + n // 4, compare))
        found.append(Case(f"compare + select{place}", shape, 3 * n + n // 2, select))
    return found


def graph_of(case: Case) -> Graph:
    """Return the operators of a case."""
    c = Lowering(_NO_TARGET, lower)
    c.graph.outputs = {"y": case.emit(c)}
    return c.graph


def built(case: Case) -> bytes:
    """Return the `.tflite` of a case, with one signature `main`."""
    return emit([Subgraph("main", graph_of(case))], {}, case.form)
