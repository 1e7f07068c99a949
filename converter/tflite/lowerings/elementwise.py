"""Elementwise ops and activations.

Elementwise ops are bound by memory, so the number of operators and bytes decides; what stays inside XNNPACK does not
break its partition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from converter.ir import Op, Value, ops
from converter.tflite import builtins as tfl
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

    def select() -> Value:
        return c(tfl.SelectV2(), c(tfl.Greater(), y, 0.0), dy, 0.0)

    def mask() -> Value:
        return c(tfl.Mul(), dy, _clamped(c, y))

    return _where(c, select, mask, y, 0)


@lowers(ops.Relu6Grad)
def relu6_grad(c: Lowering, op: ops.Relu6Grad, y: Value, dy: Value) -> Value:
    """dy where 0 < y < 6: min(y, 6 - y) is positive there and zero elsewhere, since y is a Relu6's output.

    Exactly: 9 - (y - 3)^2 would be an operand less, and take what is smaller than a rounding error for zero.
    """
    inside = c(tfl.Minimum(), y, c(tfl.Sub(), 6.0, y))

    def select() -> Value:
        return c(tfl.SelectV2(), c(tfl.Greater(), inside, 0.0), dy, 0.0)

    def mask() -> Value:
        return c(tfl.Mul(), dy, _clamped(c, inside))

    return _where(c, select, mask, y, 5 * y.type.nbytes)


def _where(c: Lowering, select: Callable[[], Value], mask: Callable[[], Value], y: Value, before: int) -> Value:
    """The cheaper of the two, which both read `y` and a cotangent, after `before` bytes of preparation."""
    n = y.type.nbytes
    prepared = c.target.moved("delegated", before, 3 * n)
    compared, selected = c.target.moved("compare", n + n // 4, 3 * n), c.target.moved("select", 2 * n + n // 4, 3 * n)
    masked = c.target.moved("delegated", 2 * n, 3 * n) + c.target.moved("delegated", 3 * n, 3 * n)
    return c.cheapest([Form("select", prepared + compared + selected, select), Form("mask", prepared + masked, mask)])


def _clamped(c: Lowering, x: Value) -> Value:
    """1 where x is positive, 0 where it is zero: XNNPACK clamps a product quickest as a 1x1 depthwise convolution."""
    channels = x.shape[-1]
    image = c.reshape(x, (1, 1, x.type.size // channels, channels))
    weight, bias = np.full((1, 1, 1, channels), HUGE, np.float32), np.zeros(channels, np.float32)
    op = tfl.DepthwiseConv2D(padding="VALID", activation="RELU_N1_TO_1")
    return c.reshape(c(op, image, c.constant(weight), c.constant(bias)), x.shape)
