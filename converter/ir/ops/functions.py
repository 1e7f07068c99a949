"""Elementwise functions: powers, exponentials and angles."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.extent import Extent, Pole, at_corners
from converter.ir.op import Cotangent
from converter.ir.ops.elementwise import Add, Binary, Div, Equal, Mul, Neg, Select, Sub, Unary

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


#: Of which e^x is still a float32.
LARGEST_POWER = 88.0


class Exp(Unary):
    """e^x."""

    function = np.exp
    ends = (0.0, inf)
    rises = True

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[0].high <= LARGEST_POWER else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, y),)


class Log(Unary):
    """Natural logarithm."""

    function = np.log
    rises = True

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[0].positive else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Div(), dy, x),)


class Sqrt(Unary):
    """Square root."""

    function = np.sqrt
    ends = (0.0, inf)
    rises = True

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[0].positive else Pole.SLOPE

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Div(), b(Mul(), dy, 0.5), y),)


class Rsqrt(Unary):
    """1/sqrt(x)."""

    function = staticmethod(lambda x: 1 / np.sqrt(x))
    ends = (0.0, inf)

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[0].positive else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), b(Mul(), dy, -0.5), b(Div(), y, x)),)


class Sin(Unary):
    """Sine."""

    function = np.sin
    ends = (-1.0, 1.0)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, b(Cos(), x)),)


class Cos(Unary):
    """Cosine."""

    function = np.cos
    ends = (-1.0, 1.0)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Neg(), b(Mul(), dy, b(Sin(), x))),)


class Log1p(Unary):
    """log(1 + x), exact for small x."""

    function = np.log1p
    rises = True

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[0].low > -1 else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Div(), dy, b(Add(), x, 1.0)),)


class Expm1(Unary):
    """e^x - 1, exact for small x."""

    function = np.expm1
    ends = (-1.0, inf)
    rises = True

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[0].high <= LARGEST_POWER else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, b(Add(), y, 1.0)),)


class Pow(Binary):
    """x ** y for x > 0 (any x when y is a whole number); with a cotangent for the base and the exponent."""

    function = np.power

    def extent(self, *operands: Extent) -> Extent:
        return at_corners(type(self).function, *operands) if operands[0].low >= 0 else super().extent(*operands)

    def pole(self, *operands: Extent) -> Pole:
        base, exponent = operands
        power = exponent.low if exponent.low == exponent.high else 0.5
        whole = power >= 0 and float(power).is_integer()
        return Pole.NONE if base.positive or whole or (base.low >= 0 and power >= 1) else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (
            lambda: b.sum_to_shape(b(Mul(), dy, b(Mul(), z, b(Pow(), x, b(Sub(), z, 1.0)))), x.shape),
            lambda: b.sum_to_shape(b(Mul(), dy, b(Mul(), y, b(Log(), self._logarithmic(b, x)))), z.shape),
        )

    @staticmethod
    def _logarithmic(b: GraphBuilder, x: Value) -> Value:
        """JAX's derivative by the exponent is 0 where the base is 0."""
        return b(Select(), b(Equal(), x, 0.0), b.constant(1.0), x)


class Atan2(Binary):
    """The angle of the point (z, x)."""

    function = np.arctan2

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if any(operand.without_zero for operand in operands) else Pole.SLOPE

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def scaled(by: Value) -> Value:
            return b(Mul(), dy, b(Div(), by, b(Add(), b(Mul(), x, x), b(Mul(), z, z))))

        return (lambda: b.sum_to_shape(scaled(z), x.shape)), (lambda: b(Neg(), b.sum_to_shape(scaled(x), z.shape)))
