"""Functions of each element."""

from __future__ import annotations

from math import pi

import numpy as np

from converter.ir import Node, Value
from converter.passes.rewrite import Rewriter
from converter.tflite import builtins as tfl
from converter.tflite.avoid.pattern import avoids

#: pi as three numbers, the first two with so few bits that products with small integers are exact.
_PI = (3.140625, 0.0009670257568359375, pi - 3.140625 - 0.0009670257568359375)
#: sin(r) / r for r^2 up to (pi / 2)^2, the highest power first.
_SINE = (2.6049608621538917e-6, -0.00019808953964860733, 0.008333049330999213, -0.1666665791326169, 0.9999999956774307)


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
