"""Two-dimensional convolutions and their gradients. NHWC activations, filters in the order that TFLite kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.ops.elementwise import Add, Mul
from converter.ir.ops.linear import Layer, split_axis
from converter.ir.ops.reduce import Sum
from converter.ir.ops.shape import Concat
from converter.ir.quantization import UNSCALED, Quantization
from converter.ir.row_dependence import Rows, together
from converter.ir.types import Shape, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder

#: ((top, bottom), (left, right)); negative values crop, as in XLA.
Padding = tuple[tuple[int, int], tuple[int, int]]
NO_PADDING: Padding = ((0, 0), (0, 0))


def windows(x: np.ndarray, size: Shape, strides: Shape, dilation: Shape) -> np.ndarray:
    """View [N, Ho, Wo, C, kh, kw] of all windows of a padded NHWC array."""
    span = tuple((k - 1) * d + 1 for k, d in zip(size, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, span, axis=(1, 2))
    return view[:, :: strides[0], :: strides[1], :, :: dilation[0], :: dilation[1]]


def pad_or_crop(x: np.ndarray, padding: Padding) -> np.ndarray:
    """NHWC array with zeros around, or less of it where the padding is negative."""
    x = np.pad(x, ((0, 0), *(tuple(max(p, 0) for p in axis) for axis in padding), (0, 0)))
    (top, bottom), (left, right) = (tuple(max(-p, 0) for p in axis) for axis in padding)
    return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right]


@dataclass(frozen=True)
class Windowed(Op):
    """What all convolutions share: strides, explicit padding, filter dilation (each height, width)."""

    contracts = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1,))
    strides: tuple[int, int] = (1, 1)
    padding: Padding = NO_PADDING
    dilation: tuple[int, int] = (1, 1)

    def infer(self, *args: Any, **kwargs: Any) -> TensorType:
        raise NotImplementedError(self.name)

    def output_size(self, size: Shape, kernel: Shape) -> tuple[int, ...]:
        """Output height and width for an input of `size`."""
        span = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilation, strict=True)]
        return tuple(
            (n + sum(p) - s) // t + 1 for n, p, s, t in zip(size, self.padding, span, self.strides, strict=True)
        )

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows | tuple[Rows, ...]:
        x, w = operands
        return together(x.along((1, 2, 3)), w.along((0, 1, 2, 3)))

    def check(self, x: TensorType, w: TensorType, depth: int) -> None:
        """Raises ShapeError unless both are rank 4 and the channels agree."""
        if x.rank != 4 or w.rank != 4 or x.shape[3] != depth:
            raise ShapeError(f"{self.name}: input {list(x.shape)} (NHWC) does not fit filter {list(w.shape)}")


@dataclass(frozen=True)
class Conv2D(Windowed, Layer):
    """Convolution x[N,H,W,I] * w[O,kh,kw,I] -> [N,Ho,Wo,O] (cross-correlation, as everywhere in machine learning)."""

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        self.check(x, w, w.shape[3] if w.rank == 4 else -1)
        return x.with_shape((x.shape[0], *self.output_size(x.shape[1:3], w.shape[1:3]), w.shape[0]))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        view = windows(pad_or_crop(x, self.padding), w.shape[1:3], self.strides, self.dilation)
        return np.einsum("nijchw,ohwc->nijo", view, w, optimize=True)

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        attributes = (self.strides, self.padding, self.dilation)
        return (
            lambda: b(Conv2DInputGrad(*attributes, size=x.shape[1:3]), dy, w),
            lambda: b(Conv2DFilterGrad(*attributes, kernel=w.shape[1:3]), x, dy),
        )

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        w = inputs[1]
        return Cost(2 * outputs[0].size * w.size // w.shape[0], sum(t.nbytes for t in (*inputs, *outputs)))

    def split(self, b: GraphBuilder, x: Value, w: Value, trained: Value, frozen: Value) -> Value:
        """conv(x, W) = conv(x[..., :k], W_trained) + conv(x[..., k:], W_frozen)."""
        first, rest = split_axis(b, x, 3, trained.shape[3])
        return b(Add(), b(self, first, trained), b(self, rest, frozen))

    def channel_axis(self, w: TensorType) -> int:
        """Input channels."""
        return 3

    def input_channels(self, x: TensorType, w: TensorType) -> int:
        return w.shape[3]

    def output_axis(self, w: TensorType) -> int:
        return 0


@dataclass(frozen=True)
class Conv2DInputGrad(Windowed, Layer):
    """Cotangent of a Conv2D's input, and the transposed convolution: dy[N,Ho,Wo,O], w[O,kh,kw,I] -> [N,*size,I]."""

    size: Shape = (0, 0)

    def infer(self, dy: TensorType, w: TensorType) -> TensorType:
        self.check(dy, w, w.shape[0] if w.rank == 4 else -1)
        if self.output_size(self.size, w.shape[1:3]) != dy.shape[1:3]:
            raise ShapeError(f"{self}: no convolution with filter {list(w.shape)} gives {list(dy.shape)}")
        return dy.with_shape((dy.shape[0], *self.size, w.shape[3]))

    def evaluate(self, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        (top, bottom), (left, right) = self.padding
        out = np.zeros((dy.shape[0], self.size[0] + top + bottom, self.size[1] + left + right, w.shape[3]), dy.dtype)
        for (i, j), rows, columns in taps(dy.shape[1:3], w.shape[1:3], self.strides, self.dilation):
            out[:, rows, columns] += np.einsum("nijo,oc->nijc", dy, w[:, i, j], optimize=True)
        return pad_or_crop(out, ((-top, -bottom), (-left, -right)))

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        attributes = (self.strides, self.padding, self.dilation)
        return (
            lambda: b(Conv2D(*attributes), dy, w),
            lambda: b(Conv2DFilterGrad(*attributes, kernel=w.shape[1:3]), dy, x),
        )

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        dy, w = inputs
        return Cost(2 * dy.size * w.size // w.shape[0], sum(t.nbytes for t in (*inputs, *outputs)))

    def split(self, b: GraphBuilder, x: Value, w: Value, trained: Value, frozen: Value) -> Value:
        """Return the sum of the transposed convolutions of the input's first k channels and of the others."""
        first, rest = split_axis(b, x, 3, trained.shape[0])
        return b(Add(), b(self, first, trained), b(self, rest, frozen))

    def channel_axis(self, w: TensorType) -> int:
        """Input channels, those of dy."""
        return 0

    def input_channels(self, x: TensorType, w: TensorType) -> int:
        return w.shape[0]

    def output_axis(self, w: TensorType) -> int:
        return 3


@dataclass(frozen=True)
class Conv2DFilterGrad(Windowed):
    """Cotangent of a Conv2D's filter: x[N,H,W,I], dy[N,Ho,Wo,O] -> [O,*kernel,I]."""

    kernel: Shape = (1, 1)

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        if x.rank != 4 or self.output_size(x.shape[1:3], self.kernel) != dy.shape[1:3]:
            raise ShapeError(f"{self}: no such convolution takes {list(x.shape)} to {list(dy.shape)}")
        return x.with_shape((dy.shape[3], *self.kernel, x.shape[3]))

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows | tuple[Rows, ...]:
        return Op.batch_rows(self, inputs, *operands)

    def evaluate(self, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        view = windows(pad_or_crop(x, self.padding), self.kernel, self.strides, self.dilation)
        return np.einsum("nijchw,nijo->ohwc", view, dy, optimize=True)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        dy = inputs[1]
        return Cost(2 * dy.size * outputs[0].size // dy.shape[3], sum(t.nbytes for t in (*inputs, *outputs)))


@dataclass(frozen=True)
class Int8Conv2D(Windowed):
    """Conv2D with a constant int8 filter that stands for real numbers, one scale for each output channel."""

    linear_in = ()  # as an Int8MatMul
    of: Quantization = UNSCALED

    def _real(self) -> Conv2D:
        return Conv2D(self.strides, self.padding, self.dilation)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if w.quantization != self.of:
            raise ShapeError(f"Int8Conv2D: operands {x} and {w}")
        return self._real().infer(x, TensorType(w.shape, x.dtype))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return self._real().evaluate(x, self.of.real(w).astype(x.dtype))

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_x() -> Value:
            """The scales lie along the sum here: they go onto the cotangent, and the same integers have scale 1."""
            scaled = b(Mul(), dy, b.constant(self.of.scales, dtype=dy.dtype))
            unscaled = b.quantized(b.graph.constants[w], UNSCALED, w.name)
            attributes = (self.strides, self.padding, self.dilation)
            return b(Int8Conv2DInputGrad(*attributes, size=x.shape[1:3]), scaled, unscaled)

        return to_x, None

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return self._real().cost(inputs, outputs)


@dataclass(frozen=True)
class Int8Conv2DInputGrad(Conv2DInputGrad):
    """Conv2DInputGrad with a constant int8 filter of scale 1."""

    linear_in = ()  # as an Int8MatMul

    def infer(self, dy: TensorType, w: TensorType) -> TensorType:
        return super().infer(dy, TensorType(w.shape, dy.dtype))

    def evaluate(self, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        return super().evaluate(dy, w.astype(dy.dtype))

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return lambda: b(Int8Conv2D(self.strides, self.padding, self.dilation), dy, w), None


@dataclass(frozen=True)
class DepthwiseConv2D(Windowed, Layer):
    """Depthwise convolution x[N,H,W,C] * w[1,kh,kw,C*m] -> [N,Ho,Wo,C*m]; output channel o reads input o // m."""

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if w.rank != 4 or x.rank != 4 or w.shape[0] != 1 or w.shape[3] % x.shape[3]:
            raise ShapeError(f"{self.name}: input {list(x.shape)} (NHWC) does not fit filter {list(w.shape)}")
        return x.with_shape((x.shape[0], *self.output_size(x.shape[1:3], w.shape[1:3]), w.shape[3]))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x = np.repeat(x, w.shape[3] // x.shape[3], axis=3)
        view = windows(pad_or_crop(x, self.padding), w.shape[1:3], self.strides, self.dilation)
        return np.einsum("nijchw,hwc->nijc", view, w[0], optimize=True)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows | tuple[Rows, ...]:
        x, w = (rows.along(axes) for rows, axes in zip(operands, ((1, 2), (0, 1, 2)), strict=True))
        filters = inputs[1].shape[3] // inputs[0].shape[3]
        return together(x.moved(lambda a: a.repeat(filters if a.shape[3] > 1 else 1, 3)), w)

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        attributes, channels, m = (self.strides, self.padding, self.dilation), x.shape[3], w.shape[3] // x.shape[3]

        def to_x() -> Value:
            dx = b(DepthwiseInputGrad(*attributes, size=x.shape[1:3]), dy, w)
            # One cotangent for each of the m output channels that read an input channel.
            return dx if m == 1 else b(Sum((4,)), b.reshape(dx, (*x.shape[:3], channels, m)))

        def to_w() -> Value:
            wide = x
            if m > 1:
                spread = b.broadcast_to(b.reshape(x, (*x.shape, 1)), (*x.shape, m))
                wide = b.reshape(spread, (*x.shape[:3], channels * m))
            return b(DepthwiseFilterGrad(*attributes, kernel=w.shape[1:3]), wide, dy)

        return to_x, to_w

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        kh, kw = inputs[1].shape[1:3]
        return Cost(2 * outputs[0].size * kh * kw, sum(t.nbytes for t in (*inputs, *outputs)))

    def split(self, b: GraphBuilder, x: Value, w: Value, trained: Value, frozen: Value) -> Value:
        """Return the two parts; channels do not mix: the two parts stand side by side."""
        first, rest = split_axis(b, x, 3, trained.shape[3] * x.shape[3] // w.shape[3])
        return b(Concat(3), b(self, first, trained), b(self, rest, frozen))

    def channel_axis(self, w: TensorType) -> int:
        """Return the channels, which do not mix."""
        return 3

    def input_channels(self, x: TensorType, w: TensorType) -> int:
        """Number of equal parts into which that axis can be cut: the m filters of an input channel stay together."""
        return x.shape[3]

    def output_axis(self, w: TensorType) -> int:
        return 3


@dataclass(frozen=True)
class DepthwiseInputGrad(Windowed):
    """Cotangent of a DepthwiseConv2D's input, multiplier 1: dy[N,Ho,Wo,C], w[1,kh,kw,C] -> [N,*size,C]."""

    size: Shape = (0, 0)

    def infer(self, dy: TensorType, w: TensorType) -> TensorType:
        self.check(dy, w, w.shape[3] if w.rank == 4 else -1)
        return dy.with_shape((dy.shape[0], *self.size, dy.shape[3]))

    def evaluate(self, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        (top, bottom), (left, right) = self.padding
        out = np.zeros((dy.shape[0], self.size[0] + top + bottom, self.size[1] + left + right, w.shape[3]), dy.dtype)
        for (i, j), rows, columns in taps(dy.shape[1:3], w.shape[1:3], self.strides, self.dilation):
            out[:, rows, columns] += dy * w[0, i, j]
        return pad_or_crop(out, ((-top, -bottom), (-left, -right)))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        kh, kw = inputs[1].shape[1:3]
        return Cost(2 * inputs[0].size * kh * kw, sum(t.nbytes for t in (*inputs, *outputs)))


@dataclass(frozen=True)
class DepthwiseFilterGrad(Windowed):
    """Cotangent of a DepthwiseConv2D's filter, multiplier 1: x[N,H,W,C], dy[N,Ho,Wo,C] -> [1,*kernel,C]."""

    kernel: Shape = (1, 1)

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        if x.shape[3] != dy.shape[3] or self.output_size(x.shape[1:3], self.kernel) != dy.shape[1:3]:
            raise ShapeError(f"{self}: no such convolution takes {list(x.shape)} to {list(dy.shape)}")
        return x.with_shape((1, *self.kernel, x.shape[3]))

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows | tuple[Rows, ...]:
        return Op.batch_rows(self, inputs, *operands)

    def evaluate(self, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        view = windows(pad_or_crop(x, self.padding), self.kernel, self.strides, self.dilation)
        return np.einsum("nijchw,nijc->hwc", view, dy, optimize=True)[None]

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        kh, kw = self.kernel
        return Cost(2 * inputs[1].size * kh * kw, sum(t.nbytes for t in (*inputs, *outputs)))


def taps(size: Shape, kernel: Shape, strides: Shape, dilation: Shape) -> list[tuple[tuple[int, int], slice, slice]]:
    """Return, by filter position, the rows and columns of the padded input that it meets, for an output of `size`."""

    def span(k: int, axis: int) -> slice:
        start = k * dilation[axis]
        return slice(start, start + (size[axis] - 1) * strides[axis] + 1, strides[axis])

    return [((i, j), span(i, 0), span(j, 1)) for i in range(kernel[0]) for j in range(kernel[1])]
