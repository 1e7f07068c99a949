"""Elementwise functions."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids, is_constant
from converter.ir import Node, Value
from converter.ir.rewrite import Rewriter

#: pi as three numbers, the first two with so few bits that products with small integers are exact, in float16 too.
_PI = (3.0, 0.140625, pi - 3.140625)
#: sin(r) / r for r^2 up to (pi / 2)^2, the highest power first.
_SINE = (2.6049608621538917e-6, -0.00019808953964860733, 0.008333049330999213, -0.1666665791326169, 0.9999999956774307)

#: artanh(erf(x / sqrt 2)) / x for x up to 4.6, the highest power of x^2 first; what it makes of GELU is within 4e-6.
_SHARE, _FARTHEST = (1.12901905e-6, -3.08215416e-5, -0.000123017934, 0.0364636437, 0.797832371), 4.6**2
#: The same of the approximation by a tanh.
_APPROXIMATE = (0.044715 * sqrt(2 / pi), sqrt(2 / pi))
#: What an engine makes part of a product before it.
_FOLDED = (tfl.Reshape, tfl.Add, tfl.Sub, tfl.Mul)
#: e to this is no number of float16, and less than float32 has.
_EXPONENT = 80.0
#: What only serves to keep a number from zero: no more than the least of float16, which may stand in its place.
_NOTHING = 2.0**-24
#: What only serves to make small numbers large.
_HUGE = 1e20
#: Below all that float16 has, nearly.
_BOTTOM = -60000.0


@avoids(
    "sine",
    "GPU: SIN and COS: errors of 2e-4 (WGSL allows 2^-11). Hexagon: of x up to 10: 9e-3, 100: 7e-2, 1000: 1; "
    "so: 1.4e-3 up to 300, where x itself is known to 0.1",
    lambda b, node: isinstance(node.op, tfl.Sin | tfl.Cos),
)
def by_a_polynomial(b: Rewriter, node: Node) -> Value:
    """A polynomial of what is left of x after the nearest multiple of pi, whose parity is the sign."""
    (x,) = node.inputs

    def number(value: float) -> Value:
        return b.constant(np.array([value], np.float32))

    shift = 0.5 if isinstance(node.op, tfl.Cos) else 0.0
    turns = b(tfl.Round(), b(tfl.Sub(), b(tfl.Mul(), x, number(1 / pi)), number(shift)))
    place = b(tfl.Add(), turns, number(shift))
    for part in _PI:
        x = b(tfl.Sub(), x, b(tfl.Mul(), place, number(part)))
    square = b(tfl.Mul(), x, x)
    total = number(_SINE[0])
    for coefficient in _SINE[1:]:
        total = b(tfl.Add(), b(tfl.Mul(), total, square), number(coefficient))
    half = b(tfl.Mul(), turns, number(0.5))
    odd = b(tfl.Mul(), b(tfl.Sub(), half, b(tfl.Floor(), half)), number(4.0))  # 0 or 2
    sign = b(tfl.Sub(), number(1.0), odd)
    if isinstance(node.op, tfl.Cos):
        sign = b(tfl.Neg(), sign)
    return b(tfl.Mul(), b(tfl.Mul(), x, total), sign)


def _is_of_a_product(b: Rewriter, x: Value) -> bool:
    """Whether a value is a matrix product, a convolution or a sum of two, perhaps with a bias and a factor."""
    seen, left = set[Value](), [x]
    while left:
        value = left.pop()
        node = b.producer(value, tfl.Builtin)
        if node is None or value in seen:
            continue
        sums = isinstance(node.op, tfl.Add) and not any(is_constant(b, v) for v in node.inputs)
        if sums or node.op.product:
            return True
        seen.add(value)
        left += node.inputs if isinstance(node.op, _FOLDED) else ()
    return False


@avoids(
    "activation-of-product",
    "Hexagon: TANH of BATCH_MATMUL, FULLY_CONNECTED, CONV_2D, DEPTHWISE_CONV_2D, also behind an ADD of a bias, a MUL "
    "with 1 or a RESHAPE, and of an ADD of two tensors: off by 7e-3, as if of 8 bits; alone, or with a MAXIMUM "
    "between: 4e-4",
    lambda b, node: isinstance(node.op, tfl.Tanh) and _is_of_a_product(b, node.inputs[0]),
)
def behind_a_maximum(b: Rewriter, node: Node) -> Value:
    """Apply it to the larger of x and a number so low that its result is -1 as well."""
    return b(node.op, b(tfl.Maximum(), node.inputs[0], b.constant(np.array([_BOTTOM], np.float32))))


@avoids(
    "logistic",
    "Hexagon: LOGISTIC: off by 7.4e-4, behind a product by 4e-3; 0.5 TANH(x / 2) + 0.5: 1.3e-4, half of the last bit",
    lambda b, node: isinstance(node.op, tfl.Logistic),
)
def by_a_tanh(b: Rewriter, node: Node) -> Value:
    """0.5 tanh(x / 2) + 0.5."""
    half = b.constant(np.array([0.5], np.float32))
    transposed = b(tfl.Tanh(), b(tfl.Mul(), node.inputs[0], half))
    return b(tfl.Add(), b(tfl.Mul(), transposed, half), half)


def _mask_of(b: Rewriter, node: Node) -> Value | None:
    """x, where a node is x times a huge number, clamped between -1 and 1."""
    if not isinstance(node.op, tfl.Mul | tfl.DepthwiseConv2D) or node.op.activation != "RELU_N1_TO_1":
        return None
    x, factor, *bias = node.inputs
    if bias and factor.shape[1:3] != (1, 1):  # a sum over a window, of which the sign is another
        return None
    scale, shift = b.array(factor), b.array(bias[0]) if bias else np.zeros(1)
    if scale is None or shift is None or shift.any() or not (scale >= _HUGE).all():
        return None
    return x if x.shape == node.outputs[0].shape else None


@avoids(
    "mask-of-huge",
    "Hexagon: MUL, DEPTHWISE_CONV_2D with 1e30, clamped to 1, by which ReLU's gradient knows what is above zero: 1e30 "
    "is 65536 there, so 0.65 for x = 1e-5. SIGN: 1",
    lambda b, node: _mask_of(b, node) is not None,
)
def by_its_sign(b: Rewriter, node: Node) -> Value | None:
    """The sign of x."""
    x = _mask_of(b, node)
    return None if x is None else b(tfl.Sign(), x)


def _is_bounded(b: Rewriter, x: Value) -> bool:
    """Whether a value is what `of_what_float16_has` makes, or between closer bounds."""
    below = b.producer(x, tfl.Minimum)
    above = None if below is None else b.producer(below.inputs[0], tfl.Maximum)
    if below is None or above is None:
        return False
    most, least = b.array(below.inputs[1]), b.array(above.inputs[1])
    return most is not None and least is not None and bool((most <= _EXPONENT).all() and (least >= -_EXPONENT).all())


@avoids(
    "exp",
    "Hexagon: EXP of -88.5 and below, 89.5 and above: now 0, now 131008, now -131008; so a softmax or its loss whose "
    "logits are 89 apart, or masked by -1e4",
    lambda b, node: isinstance(node.op, tfl.Exp) and not _is_bounded(b, node.inputs[0]),
)
def of_what_float16_has(b: Rewriter, node: Node) -> Value:
    """Apply it to x between two bounds, beyond which float16 has zeros and numbers that are too large."""
    least, most = (b.constant(np.array([bound], np.float32)) for bound in (-_EXPONENT, _EXPONENT))
    return b(node.op, b(tfl.Minimum(), b(tfl.Maximum(), node.inputs[0], least), most))


@avoids(
    "softmax",
    "Hexagon: SOFTMAX: 0.9985 for 1 where all else in a row is masked or far behind, rows add up to 1 less 2e-3 at "
    "most: the gradient of a sure answer never ends. EXP of x less its largest, by the SUM: 1, and rows within 1e-3",
    lambda b, node: isinstance(node.op, tfl.Softmax),
)
def by_its_definition(b: Rewriter, node: Node) -> Value:
    """exp(beta (x - max x)), each by the sum of the row."""
    (x,) = node.inputs
    last = (x.type.rank - 1,)
    left = b(tfl.Sub(), x, b(tfl.ReduceMax(last, True), x))
    if node.op.beta != 1:
        left = b(tfl.Mul(), left, b.constant(np.array([node.op.beta], np.float32)))
    powers = b(tfl.Exp(), left)
    return b(tfl.Div(), powers, b(tfl.Sum(last, True), powers))


def _is_next_to_nothing(b: Rewriter, x: Value) -> bool:
    """Whether a value only keeps another one from zero."""
    array = b.array(x)
    return array is not None and bool((np.abs(array) <= _NOTHING).all())


def _share_of(b: Rewriter, node: Node) -> Value | None:
    """s, where a node is (x s + a) / (x + c), a and c next to 0, and s is what `by_the_tanh_of_a_polynomial` makes."""
    sums = [b.producer(v, tfl.Add) for v in node.inputs] if isinstance(node.op, tfl.Div) else []
    if len(sums) != 2 or None in sums:
        return None
    (above, *a), (below, *c) = (
        sorted(made.inputs, key=lambda v: is_constant(b, v)) for made in sums if made is not None
    )
    product = b.producer(above, tfl.Mul)
    if product is None or below not in product.inputs or not all(_is_next_to_nothing(b, v) for v in (*a, *c)):
        return None
    share = product.inputs[1 - product.inputs.index(below)]
    shifted = b.producer(share, tfl.Add)
    halved = None if shifted is None else b.producer(shifted.inputs[0], tfl.Mul)
    return share if halved is not None and b.producer(halved.inputs[0], tfl.Tanh) is not None else None


@avoids(
    "gelu",
    "Hexagon: GELU: off by 4.5e-3 at x = 3.6, in the mean by 1.2e-3, behind a product by 4e-3, as if of 8 bits; "
    "x (0.5 TANH + 0.5): 1.9e-3 at 2.8, twice half a last bit, in the mean 2.8e-4. (GELU(x) + 5e-21) / (x + 1e-20), by "
    "which the gradient has the normal distribution: 0 for 0.5 where x is 0, 0.34 where it is 1e-5",
    lambda b, node: isinstance(node.op, tfl.Gelu) or _share_of(b, node) is not None,
)
def by_the_tanh_of_a_polynomial(b: Rewriter, node: Node) -> Value:
    """x (0.5 tanh(x p(x^2)) + 0.5), and the gradient's share of x is what x is multiplied with there."""
    if (share := _share_of(b, node)) is not None:
        return share
    (x,) = node.inputs

    def number(value: float) -> Value:
        return b.constant(np.array([value], np.float32))

    square = b(tfl.Mul(), x, x)
    coefficients = _APPROXIMATE if node.op.approximate else _SHARE
    if not node.op.approximate:
        square = b(tfl.Minimum(), square, number(_FARTHEST))
    total = number(coefficients[0])
    for coefficient in coefficients[1:]:
        total = b(tfl.Add(), b(tfl.Mul(), total, square), number(coefficient))
    transposed = b(tfl.Tanh(), b(tfl.Mul(), x, total))
    return b(tfl.Mul(), x, b(tfl.Add(), b(tfl.Mul(), transposed, number(0.5)), number(0.5)))
