"""Elementwise ops and activations.

Elementwise ops are bound by memory, so the number of operators and bytes decides; what stays inside XNNPACK does not
break its partition.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.builtins.base import Activation
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.forms import Form
from converter.backend.targets import Target
from converter.ir import Node, Op, Value, ops

lowers = LoweringRules()

#: Ops that have a builtin of the same meaning.
SAME_MEANING: dict[type[Op], Op] = {
    ops.Add: tfl.Add(), ops.Sub: tfl.Sub(), ops.Mul: tfl.Mul(), ops.Chosen: tfl.Mul(),
    ops.Div: tfl.Div(), ops.Pow: tfl.Pow(),
    ops.Maximum: tfl.Maximum(), ops.Minimum: tfl.Minimum(), ops.SquaredDifference: tfl.SquaredDifference(),
    ops.FloorMod: tfl.FloorMod(), ops.Neg: tfl.Neg(), ops.Sqrt: tfl.Sqrt(),
    ops.Sin: tfl.Sin(), ops.Cos: tfl.Cos(), ops.Abs: tfl.Abs(), ops.Sign: tfl.Sign(),
    ops.Ceil: tfl.Ceil(), ops.Floor: tfl.Floor(), ops.Round: tfl.Round(),
    ops.Tanh: tfl.Tanh(), ops.Logistic: tfl.Logistic(), ops.Relu: tfl.Relu(),
    ops.Relu6: tfl.Relu6(), ops.HardSwish: tfl.HardSwish(), ops.Elu: tfl.Elu(), ops.Equal: tfl.Equal(),
    ops.NotEqual: tfl.NotEqual(), ops.Less: tfl.Less(), ops.LessEqual: tfl.LessEqual(), ops.Greater: tfl.Greater(),
    ops.GreaterEqual: tfl.GreaterEqual(), ops.LogicalAnd: tfl.LogicalAnd(), ops.LogicalOr: tfl.LogicalOr(),
    ops.BitwiseXor: tfl.BitwiseXor(), ops.ShiftRight: tfl.RightShift(),
    ops.LogicalNot: tfl.LogicalNot(), ops.Select: tfl.SelectV2(),
}  # fmt: skip

#: Large enough to turn the smallest useful float into 1 behind a clamp, small enough to keep ordinary values finite; a
#: power of two, so that products with it are exact.
HUGE = 2.0**100
#: The largest number of float32.
LARGEST = float(np.finfo(np.float32).max)
#: Positions of a depthwise filter that XNNPACK's smallest kernels compute.
_LEAST_TILE = 3
#: Ways to scale and clamp.
_SCALING = tfl.Mul("RELU_N1_TO_1"), tfl.DepthwiseConv2D(padding="VALID", activation="RELU_N1_TO_1")

#: Of erf(x) / x: polynomials of x^2, the highest power first.
_ERF_ABOVE = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
_ERF_BELOW = (
    -1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667, 0.11098505178285362,
    0.49746925110067538, 1.0,
)  # fmt: skip

#: Of erfc(x) |x| e^(x^2): polynomials of 1 / x^2.
_ERFC_TO_2 = (
    2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1, -5.824733027278666e-1, 6.210004621745983e-1,
    -4.944515323274145e-1, 3.404879937665872e-1, -2.741127028184656e-1, 5.638259427386472e-1,
)  # fmt: skip
_ERFC_FROM_2 = (
    -1.047766399936249e1, 1.297719955372516e1, -7.495518717768503e0, 2.921019019210786e0, -1.015265279202700e0,
    4.218463358204948e-1, -2.820767439740514e-1, 5.641895067754075e-1,
)  # fmt: skip


@lowers(*SAME_MEANING)
def same_meaning(c: Lowering, op: Op, *operands: Value) -> Value:
    return c(SAME_MEANING[type(op)], *operands)


@lowers(ops.Cast)
def cast(c: Lowering, op: ops.Cast, x: Value) -> Value:
    return c(tfl.Cast(op.dtype), x)


@lowers(ops.Bitcast)
def bitcast(c: Lowering, op: ops.Bitcast, x: Value) -> Value:
    return c(tfl.Bitcast(op.dtype), x)


@lowers(ops.Gelu)
def gelu(c: Lowering, op: ops.Gelu, x: Value) -> Value:
    """GELU, or where the runtime has none x times the normal distribution, by its definition or the tanh near it."""
    if c.target.takes(tfl.Gelu.code, [x.type]):
        return c(tfl.Gelu(op.approximate), x)
    if op.approximate:
        cube = c(tfl.Mul(), c(tfl.Mul(), c(tfl.Mul(), x, x), x), 0.044715)
        share = c(tfl.Tanh(), c(tfl.Mul(), c(tfl.Add(), x, cube), sqrt(2 / pi)))
    else:
        share = erf(c, ops.Erf(), c(tfl.Mul(), x, sqrt(0.5)))
    return c(tfl.Mul(), c(tfl.Mul(), x, 0.5), c(tfl.Add(), share, 1.0))


@lowers(ops.LeakyRelu)
def leaky_relu(c: Lowering, op: ops.LeakyRelu, x: Value) -> Value:
    return c(tfl.LeakyRelu(op.alpha), x)


@lowers(ops.Silu)
def silu(c: Lowering, op: ops.Silu, x: Value) -> Value:
    return c(tfl.Mul(), x, c(tfl.Logistic(), x))


@lowers(ops.Erf)
def erf(c: Lowering, op: ops.Erf, x: Value) -> Value:
    """TFLite has no ERF: x times a quotient of polynomials of x^2, 4 at most, where erf is 1 (as in Eigen)."""
    x = c(tfl.Maximum(), c(tfl.Minimum(), x, 3.832506856900711), -3.832506856900711)
    square = c(tfl.Mul(), x, x)
    above = _polynomial(c, square, _ERF_ABOVE)
    below = _polynomial(c, square, _ERF_BELOW)
    return c(tfl.Div(), c(tfl.Mul(), x, above), below)


@lowers(ops.Erfc)
def erfc(c: Lowering, op: ops.Erfc, x: Value) -> Value:
    """1 - erf(x) up to 1; beyond e^(-x^2)/|x| times a polynomial of 1/x^2, from 2 on another one (as in Cephes)."""
    size = c(tfl.Abs(), x)
    a = c(tfl.Minimum(), c(tfl.Maximum(), size, 1.0), 20.0)
    z = c(tfl.Div(), 1.0, c(tfl.Mul(), a, a))
    far = c(tfl.SelectV2(), c(tfl.Less(), a, 2.0), _polynomial(c, z, _ERFC_TO_2), _polynomial(c, z, _ERFC_FROM_2))
    # The square in two parts: its rounding error would be a relative one of the power.
    high = c(tfl.Mul(), c(tfl.Round(), c(tfl.Mul(), a, 256.0)), 1 / 256)
    low = c(tfl.Mul(), c(tfl.Sub(), high, a), c(tfl.Add(), high, a))
    power = c(tfl.Mul(), c(tfl.Exp(), c(tfl.Neg(), c(tfl.Mul(), high, high))), c(tfl.Exp(), low))
    tail = c(tfl.Mul(), c(tfl.Div(), power, a), far)
    tail = c(tfl.SelectV2(), c(tfl.Less(), x, 0.0), c(tfl.Sub(), 2.0, tail), tail)
    return c(tfl.SelectV2(), c(tfl.Less(), size, 1.0), c(tfl.Sub(), 1.0, erf(c, ops.Erf(), x)), tail)


def _polynomial(c: Lowering, x: Value, coefficients: tuple[float, ...]) -> Value:
    """Horner's rule, the highest power first."""
    total = c(tfl.Add(), c(tfl.Mul(), x, coefficients[0]), coefficients[1])
    for coefficient in coefficients[2:]:
        total = c(tfl.Add(), c(tfl.Mul(), total, x), coefficient)
    return total


@lowers(ops.Exp)
def exp(c: Lowering, op: ops.Exp, x: Value) -> Value:
    """The larger of e^x and x, which is e^x: XNNPACK makes 0 of NaN, and a step that went wrong would not be seen."""
    power = c(tfl.Exp(), x)
    return c(tfl.Maximum(), power, x) if c.target.is_cpu else power


@lowers(ops.Log)
def log(c: Lowering, op: ops.Log, x: Value) -> Value:
    return _with_what_is_beyond(c, c(tfl.Log(), x), x)


def _with_what_is_beyond(c: Lowering, logarithm: Value, x: Value) -> Value:
    """A logarithm, infinity of infinity and NaN of NaN: XNNPACK's kernel for AVX2 makes 88 of both."""
    if not c.target.is_cpu:
        return logarithm
    return c(tfl.Add(), logarithm, c(tfl.Sub(), x, c(tfl.Minimum(), x, LARGEST)))


@lowers(ops.Rsqrt)
def rsqrt(c: Lowering, op: ops.Rsqrt, x: Value) -> Value:
    """RSQRT, or 1 / sqrt(x) where x may be 0, of which kernels for x86-64 make NaN in place of infinity."""
    if not c.target.is_cpu or _is_above_zero(c, x):
        return c(tfl.Rsqrt(), x)
    return c(tfl.Div(), 1.0, c(tfl.Sqrt(), x))


def _is_above_zero(c: Lowering, x: Value) -> bool:
    """Whether x is bounded by a positive number, or the sum of one and of what is not negative."""
    made = _maker(c, x)
    if made is None or not isinstance(made.op, tfl.Add | tfl.Maximum):
        return False
    arrays = [c.array(v) for v in made.inputs]
    if not any(array is not None and bool((array > 0).all()) for array in arrays):
        return False
    return isinstance(made.op, tfl.Maximum) or all(_is_never_negative(c, v) for v in made.inputs)


def _is_never_negative(c: Lowering, x: Value) -> bool:
    """Whether x is, by how it was made, 0 or more: a square, or sums and multiples of such."""
    if (array := c.array(x)) is not None:
        return bool((array >= 0).all())
    made = _maker(c, x)
    if made is None:
        return False
    if isinstance(made.op, tfl.SquaredDifference | tfl.Abs | tfl.Sqrt) or (
        isinstance(made.op, tfl.Mul) and len(set(made.inputs)) == 1
    ):
        return True
    passes_on = isinstance(made.op, tfl.Add | tfl.Mul | tfl.Sum | tfl.Mean | tfl.Reshape)
    return passes_on and all(_is_never_negative(c, v) for v in made.inputs)


def _maker(c: Lowering, x: Value) -> Node | None:
    return next((node for node in reversed(c.graph.nodes) if x in node.outputs), None)


@lowers(ops.Log1p)
def log1p(c: Lowering, op: ops.Log1p, x: Value) -> Value:
    """log(u) and what was lost in u = 1 + x, over u; the bounds keep infinity and -1 from giving NaN there."""
    bounded = c(tfl.Minimum(), x, LARGEST)
    u = c(tfl.Add(), bounded, 1.0)
    lost = c(tfl.Sub(), bounded, c(tfl.Sub(), u, 1.0))
    logarithm = _with_what_is_beyond(c, c(tfl.Log(), c(tfl.Add(), x, 1.0)), x)
    return c(tfl.Add(), logarithm, c(tfl.Div(), lost, c(tfl.Maximum(), u, float(np.finfo(np.float32).tiny))))


@lowers(ops.Expm1)
def expm1(c: Lowering, op: ops.Expm1, x: Value) -> Value:
    """e^x - 1 = tanh(x/2) (e^x + 1): exact for small x, where the difference would cancel."""
    return c(tfl.Mul(), c(tfl.Tanh(), c(tfl.Mul(), x, 0.5)), c(tfl.Add(), c(tfl.Exp(), x), 1.0))


@lowers(ops.Atan2)
def atan2(c: Lowering, op: ops.Atan2, x: Value, z: Value) -> Value:
    """The kernel does not broadcast."""
    shape = op.infer(x.type, z.type).shape
    return c(tfl.Atan2(), c.broadcast_to(x, shape), c.broadcast_to(z, shape))


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
    moved = c.target.moved("delegated", before, 3 * n) + c.target.moved("delegated", 3 * n, 3 * n)
    return Form("mask", moved + min(scaling_cost(c.target, op, n) for op in _SCALING), build)


def _positive(c: Lowering, x: Value) -> Value:
    """1 where x is positive, 0 where it is zero."""
    costs = [scaling_cost(c.target, op, x.type.nbytes) for op in _SCALING]
    if costs[0] < costs[1]:
        return c(_SCALING[0], x, HUGE)
    return _scaled(c, x, HUGE, 0.0, "RELU_N1_TO_1")


def scaling_cost(target: Target, op: Op, n: int) -> float:
    """The cost of scaling and clamping `n` bytes by MUL or DEPTHWISE_CONV_2D."""
    if isinstance(op, tfl.Mul):  # its activation is a second pass in XNNPACK
        return 2 * target.moved("delegated", 2 * n, 3 * n)
    # Its kernels compute as many positions of a filter as their tile has, and wait for what is not in the cache.
    waits = target.moved("delegated", 2 * n, 3 * n) - target.moved("delegated", 2 * n, 0)
    return target.macs("depthwise.constant", _LEAST_TILE * n // 4) + waits


def _saturated(c: Lowering, y: Value) -> Value:
    """6 where y, which is not above 6, is 6; 0 elsewhere: the float before 6 comes to 0, and 6 itself to 8."""
    before = np.nextafter(np.float32(6.0), np.float32(0.0))
    return _scaled(c, y, 2.0**24, -(2.0**24) * float(before), "RELU6")


def _scaled(c: Lowering, x: Value, scale: float, offset: float, activation: Activation) -> Value:
    """scale x + offset, clamped, in one pass: a 1x1 depthwise convolution."""
    channels = x.shape[-1]
    image = x if len(x.shape) == 4 else c.reshape(x, (1, 1, x.type.size // channels, channels))
    weight, bias = np.full((1, 1, 1, channels), scale, np.float32), np.full(channels, offset, np.float32)
    op = tfl.DepthwiseConv2D(padding="VALID", activation=activation)
    return c.reshape(c(op, image, c.constant(weight), c.constant(bias)), x.shape)
