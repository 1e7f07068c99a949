"""Activations: one semantic op each, so that each gets one good gradient and kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import erf, erfc, inf, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cotangent
from converter.ir.ops.elementwise import (
    Add,
    Binary,
    Div,
    Greater,
    GreaterEqual,
    Less,
    Maximum,
    Minimum,
    Mul,
    Select,
    Sub,
    Unary,
)
from converter.ir.ops.functions import Exp

if TYPE_CHECKING:
    from converter.ir.graph import Graph, Value
    from converter.ir.graph_builder import GraphBuilder

_erf = np.vectorize(erf, otypes=[np.float64])
_erfc = np.vectorize(erfc, otypes=[np.float64])


@dataclass(frozen=True)
class Activation(Unary):
    """One that formulas in models are recognised as.

    Attributes:
        spelled: what the formula makes of the operand and a cotangent, where that is something else than the op's own
            derivative once the cotangent is infinite: an elementwise graph whose output is named "dx".
    """

    spelled: Graph | None = field(default=None, repr=False, compare=False, kw_only=True)

    def exact_vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        spelled = self.spelled
        if spelled is None:
            return self.selecting_vjp(b, x, y=y, dy=dy)
        return (lambda: b.inline(spelled, [x, dy])["dx"],)

    def selecting_vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        """Return the op's own derivative, cut off by selecting."""
        return self.vjp(b, x, y=y, dy=dy)


class Tanh(Activation):
    """Hyperbolic tangent."""

    function = np.tanh
    rises = True
    ends = (-1.0, 1.0)

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return (cls(),)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Sub(), dy, b(Mul(), dy, b(Mul(), y, y))),)


class Logistic(Activation):
    """1 / (1 + e^-x)."""

    function = staticmethod(lambda x: np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))))
    ends = (0.0, 1.0)
    link = "sigmoid"

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return (cls(),)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, b(Sub(), y, b(Mul(), y, y))),)


class Erf(Unary):
    """Gauss error function."""

    function = staticmethod(_erf)
    ends = (-1.0, 1.0)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, b(Mul(), b(Exp(), b(Mul(), b(Mul(), x, x), -1.0)), 2 / sqrt(pi))),)


class Erfc(Unary):
    """1 - erf(x), exact where that is small."""

    function = staticmethod(_erfc)
    ends = (0.0, 2.0)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, b(Mul(), b(Exp(), b(Mul(), b(Mul(), x, x), -1.0)), -2 / sqrt(pi))),)


@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0). The derivative at 0 is `at_kink`: 0 for jax.nn.relu, 0.5 for jnp.maximum(x, 0), as in JAX."""

    function = staticmethod(lambda x: np.maximum(x, 0))
    rises = True
    ends = (0.0, inf)
    at_kink: float = 0.0

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return cls(), cls(0.5)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        if self.at_kink:
            return (lambda: b(Mul(), dy, _step(b, x, self.at_kink)),)
        return (lambda: b(ReluGrad(), y, dy),)

    def selecting_vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return self.vjp(b, x, y=y, dy=dy) if self.at_kink else (lambda: _where_above_0(b, y, dy),)


@dataclass(frozen=True)
class Relu6(Activation):
    """min(max(x, 0), 6). The derivative at 6 is `at_six`, 0 for jax.nn.relu6 and 0.5 for jnp.minimum(x, 6).

    That at 0 is `at_kink`, 0 or `at_six`.
    """

    function = staticmethod(lambda x: np.clip(x, 0, 6))
    rises = True
    ends = (0.0, 6.0)
    at_kink: float = 0.0
    at_six: float = 0.0

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return cls(), cls(0.5, 0.5), cls(0.0, 0.5)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def cotangent() -> Value:
            if not self.at_six:
                return b(Relu6Grad(), y, dy)
            positive = dy if self.at_kink else b(ReluGrad(), y, dy)
            return b(Mul(), positive, _within_6(b, x, self.at_six))

        return (cotangent,)

    def selecting_vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return self.vjp(b, x, y=y, dy=dy) if self.at_six else (lambda: _where_within_6(b, y, dy),)


def _where_above_0(b: GraphBuilder, y: Value, dy: Value) -> Value:
    """dy where y > 0, else 0, whatever dy is."""
    return b(Select(), b(Greater(), y, 0.0), dy, 0.0)


def _where_within_6(b: GraphBuilder, y: Value, dy: Value) -> Value:
    """dy where 0 < y < 6, else 0, whatever dy is."""
    return _where_above_0(b, y, b(Select(), b(Less(), y, 6.0), dy, 0.0))


def _step(b: GraphBuilder, x: Value, at_zero: float) -> Value:
    """0 for negative x, 1 for positive x, `at_zero` at 0; by arithmetic, which stays in fast kernels."""
    return b(Minimum(), b(Maximum(), b(Add(), b(Mul(), x, 1e30), at_zero), 0.0), 1.0)


def _within_6(b: GraphBuilder, x: Value, at_ends: float) -> Value:
    """1 for x between 0 and 6, 0 outside, `at_ends` at 0 and 6."""
    return _step(b, b(Minimum(), x, b(Sub(), 6.0, x)), at_ends)


class ReluGrad(Binary):
    """dy where the output y of a Relu is positive, else 0."""

    function = staticmethod(lambda y, dy: np.where(y > 0, dy, 0))
    linear_in = ((1,),)


class Relu6Grad(Binary):
    """dy where the output y of a Relu6 is strictly between 0 and 6, else 0."""

    function = staticmethod(lambda y, dy: np.where((y > 0) & (y < 6), dy, 0))
    linear_in = ((1,),)


@dataclass(frozen=True)
class HardSwish(Activation):
    """x * relu6(x + 3) / 6. The derivative of the gate at -3 and 3 is `at_kink`: 0 as jax.nn's, 0.5 with jnp.clip."""

    function = staticmethod(lambda x: x * np.clip(x + 3, 0, 6) / 6)
    ends = (-0.375, inf)
    at_kink: float = 0.0

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return cls(), cls(0.5)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: self._cotangent(b, x, dy, lambda gate, through: b(Relu6Grad(), gate, through)),)

    def selecting_vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: self._cotangent(b, x, dy, lambda gate, through: _where_within_6(b, gate, through)),)

    def _cotangent(self, b: GraphBuilder, x: Value, dy: Value, cut: Callable[[Value, Value], Value]) -> Value:
        shifted = b(Add(), x, 3.0)
        gate, through = b(Relu6(), shifted), b(Mul(), dy, x)
        kink = self.at_kink
        slope = b(Mul(), through, _within_6(b, shifted, kink)) if kink else cut(gate, through)
        return b(Mul(), b(Add(), b(Mul(), dy, gate), slope), 1 / 6)


class Silu(Activation):
    """x * logistic(x)."""

    function = staticmethod(lambda x: x * Logistic.function(x))
    ends = (-0.2785, inf)

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return (cls(),)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def cotangent() -> Value:
            gate = b(Logistic(), x)  # s + y(1 - s), with the forward value y
            return b(Mul(), dy, b(Add(), gate, b(Sub(), y, b(Mul(), y, gate))))

        return (cotangent,)


@dataclass(frozen=True)
class Gelu(Activation):
    """x * Phi(x): exact, or with the tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415)."""

    ends = (-0.1701, inf)
    approximate: bool = False

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return cls(), cls(approximate=True)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        if self.approximate:
            return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + _erf(x / sqrt(2)))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def exact() -> Value:
            # Phi(x) + x pdf(x). Phi(x) is y / x; the offsets make it 1/2 at 0 and vanish beside any ordinary number.
            density = b(Mul(), b(Exp(), b(Mul(), b(Mul(), x, x), -0.5)), 1 / sqrt(2 * pi))
            cdf = b(Div(), b(Add(), y, 0.5e-20), b(Add(), x, 1e-20))
            return b(Mul(), dy, b(Add(), cdf, b(Mul(), x, density)))

        def tanh() -> Value:
            c = sqrt(2 / pi)
            square = b(Mul(), x, x)
            t = b(Tanh(), b(Mul(), x, b(Add(), b(Mul(), square, c * 0.044715), c)))
            slope = b(Add(), b(Mul(), square, 3 * c * 0.044715), c)
            half = b(Mul(), x, 0.5)  # 0.5 (1 + t) + 0.5 x (1 - t^2) slope
            rise = b(Mul(), b(Mul(), half, slope), b(Sub(), 1.0, b(Mul(), t, t)))
            return b(Mul(), dy, b(Add(), b(Add(), b(Mul(), t, 0.5), 0.5), rise))

        return (tanh if self.approximate else exact,)


class Elu(Activation):
    """x where positive, else e^x - 1."""

    function = staticmethod(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))))
    ends = (-1.0, inf)

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        return (cls(),)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), dy, b(Add(), b(Minimum(), y, 0.0), 1.0)),)


@dataclass(frozen=True)
class LeakyRelu(Activation):
    """x where positive, else alpha * x (alpha > 0).

    The derivative at 0 is 1, as that of jax.nn.leaky_relu; alpha where it is `flat`, as PyTorch's.
    """

    alpha: float = 0.2
    flat: bool = field(default=False, repr=False)  # no other function: programs of both share their states

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x, self.alpha * x)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        above = Greater() if self.flat else GreaterEqual()
        return (lambda: b(Select(), b(above, y, 0.0), dy, b(Mul(), dy, self.alpha)),)
