"""Convolutions and pools, NHWC. Padding is TFLite's: SAME (output = ceil(input / stride)) or VALID."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from converter.backend.builtins.base import (
    Activation,
    Builtin,
    Delegated,
    Types,
    activate,
    int32,
    needs_rank_4,
    packed_matrix,
)
from converter.ir import ops
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.types import FLOAT32, INT32, Shape, TensorType

#: Bytes of an address.
POINTER = 8
#: Taps of a filter that XNNPACK's depthwise kernels hold at the most. One of more taps, or of several outputs from each
#: channel, is a product for each channel: LiteRT 2.x.
DEPTHWISE_TAPS = 25
Padding = Literal["SAME", "VALID"]
Pair = tuple[int, int]


def explicit(padding: Padding, size: Shape, window: Shape, strides: Pair, dilation: Pair = (1, 1)) -> ops.Padding:
    """((top, bottom), (left, right)) that TFLite means for an input of `size`; of an odd sum the end gets more."""

    def along(n: int, k: int, s: int, d: int) -> Pair:
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) if padding == "SAME" else 0
        return total // 2, total - total // 2

    rows, columns = (along(*axis) for axis in zip(size, window, strides, dilation, strict=True))
    return rows, columns


def _check_bias(op: Op, result: TensorType, bias: list[TensorType]) -> TensorType:
    if any(b.shape != result.shape[3:] for b in bias) or min(result.shape[1:3]) < 1:
        raise ShapeError(f"{op}: bias {', '.join(map(str, bias))} or window does not fit result {result}")
    return result


@dataclass(frozen=True)
class Conv2D(Builtin):
    """x [N,H,W,I], w [O,kh,kw,I], bias [O] (the kernel wants one) -> [N,Ho,Wo,O], then the activation."""

    code, table = "CONV_2D", "Conv2DOptions"
    strides: Pair = (1, 1)
    padding: Padding = "SAME"
    dilation: Pair = (1, 1)
    xnnpack = True
    product = "conv"
    factors: ClassVar[tuple[int, ...]] = (1, 0)
    int8_weights = True
    activation: Activation = "NONE"

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        run = super().delegated(inputs, outputs, constant, lanes)
        if run is None or not all(constant[1:]):
            return None
        packed = self.packed_weights(inputs, lanes) + self.pointers(inputs, outputs[0])
        return replace(run, packed=packed, windows=self.padding == "VALID")

    def packed_weights(self, inputs: Types, lanes: int) -> int:
        """Return the bytes of the constant filter as XNNPACK keeps it."""
        w = inputs[1]
        return packed_matrix(prod(w.shape[1:]), w.shape[0], lanes)

    def pointers(self, inputs: Types, y: TensorType) -> int:
        """Return the bytes of the table that says where each row of each window begins.

        A plain 1x1 convolution has none.
        """
        w = inputs[1]
        plain = w.shape[1:3] == self.strides == (1, 1)
        return 0 if plain else POINTER * prod(w.shape[1:3]) * prod(y.shape[1:3])

    def meaning(self, *types: TensorType) -> ops.Windowed:
        x, w = types[:2]
        needs_rank_4(self, x, w)
        around = explicit(self.padding, x.shape[1:3], w.shape[1:3], self.strides, self.dilation)
        return ops.Conv2D(self.strides, around, self.dilation)

    def result(self, *types: TensorType) -> TensorType:
        x, w, bias = types
        if x.rank == w.rank == 4 and x.shape[3] != w.shape[3]:
            raise ShapeError(f"{self.name}: input {list(x.shape)} does not fit filter {list(w.shape)} (OHWI)")
        return _check_bias(self, self.meaning(x, w).infer(x, w), [bias])

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, bias = arrays
        y = self.meaning(*(TensorType(a.shape, a.dtype) for a in (x, w))).evaluate(x, w)
        return activate(self.activation, y + bias)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return self.meaning(*inputs).cost(inputs[:2], outputs) + Cost(0, inputs[2].nbytes)

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        """Return the patches (im2col) of all but a plain 1x1 convolution, as on one thread."""
        w, y = inputs[1], outputs[0]
        if w.shape[1:3] == self.strides == self.dilation == (1, 1):
            return ()
        return (prod(y.shape[:3]) * prod(w.shape[1:]) * w.dtype.itemsize,)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {
            "Padding": self.padding,
            "StrideH": self.strides[0],
            "StrideW": self.strides[1],
            "DilationHFactor": self.dilation[0],
            "DilationWFactor": self.dilation[1],
            "FusedActivationFunction": self.activation,
        }


class Gathering(Conv2D):
    """A CONV_2D by ones and zeros: it puts what a window meets side by side and computes nothing of the model's."""

    is_cheap = True
    factors = ()
    int8_weights = False

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, sum(t.nbytes for t in (*inputs, *outputs)))


class DepthwiseConv2D(Conv2D):
    """x [N,H,W,C], w [1,kh,kw,C m], bias [C m] -> [N,Ho,Wo,C m], then the activation."""

    code, table = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
    product = "depthwise"

    def packed_weights(self, inputs: Types, lanes: int) -> int:
        channels, w = inputs[0].shape[3], inputs[1]
        if self._by_channel(inputs):
            narrow = max(lanes // 2, 1)  # the kernels for few columns compute half as many, or fewer
            return channels * packed_matrix(prod(w.shape[1:3]), w.shape[3] // channels, narrow)
        return packed_matrix(prod(w.shape[1:3]), w.shape[3], lanes)

    def pointers(self, inputs: Types, y: TensorType) -> int:
        """Return how many: neighbouring windows share columns; one of 1x1 is a multiply-add."""
        w = inputs[1]
        if w.shape[1:3] == self.strides == (1, 1) or self._by_channel(inputs):
            return super().pointers(inputs, y)
        (kh, kw), (rows, columns) = w.shape[1:3], y.shape[1:3]
        step = kw if self.dilation[1] > 1 else min(self.strides[1], kw)
        return POINTER * rows * (kh * kw + (columns - 1) * step * kh)

    @staticmethod
    def _by_channel(inputs: Types) -> bool:
        """Return whether XNNPACK computes a product for each channel."""
        x, w = inputs[:2]
        return w.shape[3] != x.shape[3] or prod(w.shape[1:3]) > DEPTHWISE_TAPS

    def meaning(self, *types: TensorType) -> ops.Windowed:
        x, w = types[:2]
        needs_rank_4(self, x, w)
        around = explicit(self.padding, x.shape[1:3], w.shape[1:3], self.strides, self.dilation)
        return ops.DepthwiseConv2D(self.strides, around, self.dilation)

    def result(self, *types: TensorType) -> TensorType:
        x, w, bias = types
        return _check_bias(self, self.meaning(x, w).infer(x, w), [bias])

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        return ()

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        x, w = inputs[:2]
        return {**super().options(inputs, outputs), "DepthMultiplier": w.shape[3] // x.shape[3]}

    def version(self, inputs: Types, outputs: Types) -> int:
        return 1 if self.dilation == (1, 1) else 2


class Thinning(DepthwiseConv2D):
    """A DEPTHWISE_CONV_2D by ones: it takes every stride-th row and column and computes nothing of the model's."""

    is_cheap = True
    factors = ()
    int8_weights = False

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, sum(t.nbytes for t in (*inputs, *outputs)))


@dataclass(frozen=True)
class TransposeConv(Builtin):
    """The input cotangent of a convolution, as an op: w [O,kh,kw,I], x [N,h,w,I] (bias [O]) -> output_shape [N,H,W,O].

    `padding` is that of the convolution from output_shape down to x.
    """

    code, table = "TRANSPOSE_CONV", "TransposeConvOptions"
    xnnpack = True
    product = "transpose_conv"
    factors = (0, 1)
    output_shape: Shape
    strides: Pair = (1, 1)
    padding: Padding = "SAME"

    def meaning(self, *types: TensorType) -> ops.Windowed:
        w, x = types[:2]
        needs_rank_4(self, x, w)
        size = self.output_shape[1:3]
        around = explicit(self.padding, size, w.shape[1:3], self.strides)
        return ops.Conv2DInputGrad(self.strides, around, size=size)

    def result(self, *types: TensorType) -> TensorType:
        w, x, *bias = types
        transposed = w.with_shape(tuple(w.shape[i] for i in (3, 1, 2, 0))) if w.rank == 4 else w
        result = self.meaning(w, x).infer(x, transposed)
        if result.shape != self.output_shape:
            raise ShapeError(f"{self}: operands {w} and {x} give {result}")
        return _check_bias(self, result, bias)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        w, x, *bias = arrays
        op = self.meaning(*(TensorType(a.shape, a.dtype) for a in (w, x)))
        return sum(bias, start=op.evaluate(x, w.transpose(3, 1, 2, 0)))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        w, x = inputs[:2]
        return Cost(2 * x.size * w.size // w.shape[3], sum(t.nbytes for t in (*inputs, *outputs)))

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        run, w = super().delegated(inputs, outputs, constant, lanes), inputs[0]
        if run is None or not all(c for i, c in enumerate(constant) if i != 1):
            return None
        pointers = POINTER * prod(w.shape[1:3]) * prod(outputs[0].shape[1:3]) // prod(self.strides)
        return replace(run, packed=packed_matrix(prod(w.shape[1:]), w.shape[0], lanes) + pointers)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.output_shape),)

    def assemble(self, inputs: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*constants, *inputs)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Padding": self.padding, "StrideH": self.strides[0], "StrideW": self.strides[1]}

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3 if len(inputs) == 3 else 1


@dataclass(frozen=True)
class TransposeConvOfShape(TransposeConv):
    """The same with the shape of the result as its last operand, int32 [4], which the runtime may have computed."""

    code, kinds = "TRANSPOSE_CONV", "fi"

    def result(self, *types: TensorType) -> TensorType:
        *others, shape = types
        if shape != TensorType((4,), INT32) or any(t.dtype != FLOAT32 for t in others):
            raise ShapeError(f"{self}: no kernel takes {', '.join(map(str, types))}")
        return super().result(*others)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return super().evaluate(*arrays[:-1])

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return None

    def operands(self) -> tuple[np.ndarray, ...]:
        return ()

    def assemble(self, inputs: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[-1], *inputs[:-1])

    def version(self, inputs: Types, outputs: Types) -> int:
        return super().version(inputs[:-1], outputs)


@dataclass(frozen=True)
class _Pool(Builtin):
    """Window and strides are (height, width)."""

    table = "Pool2DOptions"
    xnnpack = True
    window: Pair
    strides: Pair = (1, 1)
    padding: Padding = "VALID"
    activation: Activation = "NONE"

    def explicit_padding(self, x: TensorType) -> ops.Padding:
        """Return what SAME or VALID means for this input."""
        needs_rank_4(self, x)
        return explicit(self.padding, x.shape[1:3], self.window, self.strides)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {
            "Padding": self.padding,
            "StrideH": self.strides[0],
            "StrideW": self.strides[1],
            "FilterHeight": self.window[0],
            "FilterWidth": self.window[1],
            "FusedActivationFunction": self.activation,
        }


class MaxPool2D(_Pool):
    """Largest element of each window, then the activation; padding never wins."""

    code = "MAX_POOL_2D"
    same_scale = True

    def meaning(self, *types: TensorType) -> ops.MaxPool2D:
        return ops.MaxPool2D(self.window, self.strides, self.explicit_padding(types[0]))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return activate(self.activation, super().evaluate(*arrays))


class AveragePool2D(_Pool):
    """Mean of each window's elements that are not padding, then the activation."""

    code = "AVERAGE_POOL_2D"

    def meaning(self, *types: TensorType) -> ops.SumPool2D:
        return ops.SumPool2D(self.window, self.strides, self.explicit_padding(types[0]))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        (x,) = arrays
        return activate(self.activation, super().evaluate(x) / super().evaluate(np.ones_like(x)))
