"""Elementwise ops and activations.

Elementwise ops are bound by memory, so the number of operators and bytes decides; what stays inside XNNPACK does not
break its partition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from converter.ir import Op, Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.builtins.base import Activation
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering, lowers

#: Ops that have a builtin of the same meaning.
SAME_MEANING: dict[type[Op], Op] = {
    ops.Add: tfl.Add(), ops.Sub: tfl.Sub(), ops.Mul: tfl.Mul(), ops.Div: tfl.Div(), ops.Pow: tfl.Pow(),
    ops.Maximum: tfl.Maximum(), ops.Minimum: tfl.Minimum(), ops.SquaredDifference: tfl.SquaredDifference(),
    ops.FloorMod: tfl.FloorMod(), ops.Neg: tfl.Neg(), ops.Exp: tfl.Exp(), ops.Log: tfl.Log(), ops.Sqrt: tfl.Sqrt(),
    ops.Rsqrt: tfl.Rsqrt(), ops.Sin: tfl.Sin(), ops.Cos: tfl.Cos(), ops.Abs: tfl.Abs(), ops.Sign: tfl.Sign(),
    ops.Floor: tfl.Floor(), ops.Round: tfl.Round(),
    ops.Tanh: tfl.Tanh(), ops.Logistic: tfl.Logistic(), ops.Relu: tfl.Relu(),
    ops.Relu6: tfl.Relu6(), ops.HardSwish: tfl.HardSwish(), ops.Elu: tfl.Elu(), ops.Equal: tfl.Equal(),
    ops.NotEqual: tfl.NotEqual(), ops.Less: tfl.Less(), ops.LessEqual: tfl.LessEqual(), ops.Greater: tfl.Greater(),
    ops.GreaterEqual: tfl.GreaterEqual(), ops.LogicalAnd: tfl.LogicalAnd(), ops.LogicalOr: tfl.LogicalOr(),
    ops.LogicalNot: tfl.LogicalNot(), ops.Select: tfl.SelectV2(),
}  # fmt: skip

#: Large enough to turn the smallest useful float into 1 behind a clamp, small enough to keep ordinary values finite; a
#: power of two, so that products with it are exact.
HUGE = 2.0**100


@lowers(*SAME_MEANING)
def same_meaning(c: Lowering, op: Op, *operands: Value) -> Value:
    return c(SAME_MEANING[type(op)], *operands)


@lowers(ops.Cast)
def cast(c: Lowering, op: ops.Cast, x: Value) -> Value:
    return c(tfl.Cast(op.dtype), x)


@lowers(ops.Gelu)
def gelu(c: Lowering, op: ops.Gelu, x: Value) -> Value:
    return c(tfl.Gelu(op.approximate), x)


@lowers(ops.LeakyRelu)
def leaky_relu(c: Lowering, op: ops.LeakyRelu, x: Value) -> Value:
    return c(tfl.LeakyRelu(op.alpha), x)


@lowers(ops.Silu)
def silu(c: Lowering, op: ops.Silu, x: Value) -> Value:
    return c(tfl.Mul(), x, c(tfl.Logistic(), x))


@lowers(ops.Erf)
def erf(c: Lowering, op: ops.Erf, x: Value) -> Value:
    """TFLite has no ERF. It is 2 Phi(sqrt(2) x) - 1, and Phi(z) = GELU(z) / z; the offset keeps 0/0 away."""
    z = c(tfl.Add(), c(tfl.Mul(), x, np.sqrt(2.0)), 1e-20)
    phi = c(tfl.Div(), c(tfl.Gelu(False), z), z)
    return c(tfl.Sub(), c(tfl.Mul(), phi, 2.0), 1.0)


@lowers(ops.ReluGrad)
def relu_grad(c: Lowering, op: ops.ReluGrad, y: Value, dy: Value) -> Value:
    """dy where y > 0: compare and select on builtin kernels, or a clamped product that XNNPACK runs."""
    n = y.type.nbytes

    def select() -> Value:
        return c(tfl.SelectV2(), c(tfl.Greater(), y, 0.0), dy, 0.0)

    def mask() -> Value:
        return c(tfl.Mul(), dy, _positive(c, y))

    compared = c.target.moved("compare", n + n // 4, 3 * n)
    return c.cheapest([_select(c, compared, n, select), _mask(c, 0, n, mask)])


@lowers(ops.Relu6Grad)
def relu6_grad(c: Lowering, op: ops.Relu6Grad, y: Value, dy: Value) -> Value:
    """dy where 0 < y < 6, exactly, y being a Relu6's output.

    To compare and select: y is more than what is 6 where y is, and 0 elsewhere. As a mask: the lesser of y and 6 - y.
    9 - (y - 3)^2 would be an operand less, and take what is smaller than a rounding error for zero.
    """
    n = y.type.nbytes

    def select() -> Value:
        return c(tfl.SelectV2(), c(tfl.Greater(), y, _saturated(c, y)), dy, 0.0)

    def mask() -> Value:
        return c(tfl.Mul(), dy, _positive(c, c(tfl.Minimum(), y, c(tfl.Sub(), 6.0, y))))

    compared = c.target.moved("delegated", 2 * n, 3 * n) + c.target.moved("compare", 2 * n + n // 4, 3 * n)
    return c.cheapest([_select(c, compared, n, select), _mask(c, 5 * n, n, mask)])


def _select(c: Lowering, compared: float, n: int, build: Callable[[], Value]) -> Form:
    """A comparison that costs `compared`, and a select of a cotangent of `n` bytes."""
    return Form("select", compared + c.target.moved("select", 2 * n + n // 4, 3 * n), build)


def _mask(c: Lowering, before: int, n: int, build: Callable[[], Value]) -> Form:
    """A mask from `n` bytes that were prepared by moving `before`, and its product with a cotangent."""
    moved = (before, 2 * n, 3 * n)
    return Form("mask", sum(c.target.moved("delegated", nbytes, 3 * n) for nbytes in moved), build)


def _positive(c: Lowering, x: Value) -> Value:
    """1 where x is positive, 0 where it is zero."""
    return _scaled(c, x, HUGE, 0.0, "RELU_N1_TO_1")


def _saturated(c: Lowering, y: Value) -> Value:
    """6 where y, which is not above 6, is 6; 0 elsewhere: the float before 6 comes to 0, and 6 itself to 8."""
    before = np.nextafter(np.float32(6.0), np.float32(0.0))
    return _scaled(c, y, 2.0**24, -(2.0**24) * float(before), "RELU6")


def _scaled(c: Lowering, x: Value, scale: float, offset: float, activation: Activation) -> Value:
    """scale x + offset, clamped: XNNPACK does this quickest as a 1x1 depthwise convolution."""
    channels = x.shape[-1]
    image = x if len(x.shape) == 4 else c.reshape(x, (1, 1, x.type.size // channels, channels))
    weight, bias = np.full((1, 1, 1, channels), scale, np.float32), np.full(channels, offset, np.float32)
    op = tfl.DepthwiseConv2D(padding="VALID", activation=activation)
    return c.reshape(c(op, image, c.constant(weight), c.constant(bias)), x.shape)
