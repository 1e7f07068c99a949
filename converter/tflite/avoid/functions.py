"""Functions of each element."""

from __future__ import annotations

from math import pi

import numpy as np

from converter.ir import Node, Value
from converter.passes.rewrite import Rewriter
from converter.tflite import builtins as tfl
from converter.tflite.avoid.pattern import avoids, is_constant

#: pi as three numbers, the first two with so few bits that products with small integers are exact.
_PI = (3.140625, 0.0009670257568359375, pi - 3.140625 - 0.0009670257568359375)
#: sin(r) / r for r^2 up to (pi / 2)^2, the highest power first.
_SINE = (2.6049608621538917e-6, -0.00019808953964860733, 0.008333049330999213, -0.1666665791326169, 0.9999999956774307)

#: artanh(erf(x / sqrt 2)) / x for x up to 4.4, the highest power of x^2 first; what it makes of Phi(x) is within 7e-6.
_SHARE, _FARTHEST = (-1.37591948e-5, -0.000193889319, 0.0365455934, 0.797820663), 4.4**2
_PRODUCTS = (tfl.BatchMatmul, tfl.FullyConnected, tfl.Conv2D, tfl.DepthwiseConv2D, tfl.TransposeConv)
#: What an engine makes part of a product before it.
_FOLDED = (tfl.Reshape, tfl.Add, tfl.Sub, tfl.Mul)
#: Below all that float16 has, nearly.
_BOTTOM = -60000.0


@avoids(
    "sine",
    "GPU: SIN and COS: errors of 2e-4 (WGSL allows 2^-11)",
    lambda b, node: isinstance(node.op, tfl.Sin | tfl.Cos),
)
def by_a_polynomial(b: Rewriter, node: Node) -> Value:
    """A polynomial of what is left of x behind the nearest multiple of pi, whose parity is the sign."""
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
    """Whether a value is a matrix product or a convolution, perhaps with a bias and a factor."""
    seen, left = set[Value](), [x]
    while left:
        value = left.pop()
        node = b.producer(value, tfl.Builtin)
        if node is None or value in seen:
            continue
        if isinstance(node.op, _PRODUCTS):
            return True
        seen.add(value)
        left += node.inputs if isinstance(node.op, _FOLDED) else ()
    return False


@avoids(
    "activation-of-product",
    "Hexagon: TANH, GELU of BATCH_MATMUL, FULLY_CONNECTED, CONV_2D, DEPTHWISE_CONV_2D, also behind an ADD of a bias, a "
    "MUL with 1 or a RESHAPE: off by 7e-3 and 4e-3, as if of 8 bits; alone, or with a MAXIMUM between: 4e-4 and 7e-4",
    lambda b, node: isinstance(node.op, tfl.Tanh | tfl.Gelu) and _is_of_a_product(b, node.inputs[0]),
)
def behind_a_maximum(b: Rewriter, node: Node) -> Value:
    """Of the larger of x and a number so low that its result is -1, or 0, as well."""
    return b(node.op, b(tfl.Maximum(), node.inputs[0], b.constant(np.array([_BOTTOM], np.float32))))


@avoids(
    "logistic",
    "Hexagon: LOGISTIC: off by 7.4e-4, behind a product by 4e-3; 0.5 TANH(x / 2) + 0.5: 1.3e-4, half of the last bit",
    lambda b, node: isinstance(node.op, tfl.Logistic),
)
def by_a_tanh(b: Rewriter, node: Node) -> Value:
    """0.5 tanh(x / 2) + 0.5."""
    half = b.constant(np.array([0.5], np.float32))
    turned = b(tfl.Tanh(), b(tfl.Mul(), node.inputs[0], half))
    return b(tfl.Add(), b(tfl.Mul(), turned, half), half)


def _gelu_operand(b: Rewriter, node: Node) -> Value | None:
    """x, where a node is (GELU(x) + a) / (x + b) with numbers a and b."""
    sums = [b.producer(v, tfl.Add) for v in node.inputs] if isinstance(node.op, tfl.Div) else []
    if len(sums) != 2 or None in sums:
        return None
    (above, *a), (below, *c) = (
        sorted(made.inputs, key=lambda v: is_constant(b, v)) for made in sums if made is not None
    )
    gelu = b.producer(above, tfl.Gelu)
    if gelu is None or gelu.op.approximate:
        return None
    larger = b.producer(gelu.inputs[0], tfl.Maximum)  # as `behind_a_maximum` makes it
    is_share = below in (gelu.inputs[0], *(larger.inputs if larger is not None else ()))
    return below if is_share and all(is_constant(b, v) for v in (*a, *c)) else None


@avoids(
    "gelu-share",
    "Hexagon: (GELU(x) + 5e-21) / (x + 1e-20), by which the gradient has the normal distribution: 0 for 0.5 where x is "
    "0, 0.34 where it is 1e-5",
    lambda b, node: _gelu_operand(b, node) is not None,
)
def by_the_tanh_of_a_polynomial(b: Rewriter, node: Node) -> Value | None:
    """0.5 tanh(x p(x^2)) + 0.5."""
    x = _gelu_operand(b, node)
    if x is None:
        return None

    def number(value: float) -> Value:
        return b.constant(np.array([value], np.float32))

    square = b(tfl.Minimum(), b(tfl.Mul(), x, x), number(_FARTHEST))
    total = number(_SHARE[0])
    for coefficient in _SHARE[1:]:
        total = b(tfl.Add(), b(tfl.Mul(), total, square), number(coefficient))
    turned = b(tfl.Tanh(), b(tfl.Mul(), x, total))
    return b(tfl.Add(), b(tfl.Mul(), turned, number(0.5)), number(0.5))
