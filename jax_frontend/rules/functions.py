"""Transcendental functions that TFLite lacks, by formulas of float32 precision; the derivatives are JAX's."""

from __future__ import annotations

from math import log, pi
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_frontend.registry import ImportRules
from jax_frontend.rules.spelled import spelled

rule = ImportRules()


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Horner's rule, the highest power first."""
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


@spelled(rule, "tan")
def tan(x: Any, **_: Any) -> Any:
    """sin(x) / cos(x)."""
    return lax.sin(x) / lax.cos(x)


@spelled(rule, "atan")
def atan(x: Any, **_: Any) -> Any:
    """atan2(x, 1)."""
    return lax.atan2(x, jnp.ones_like(x))


@spelled(rule, "asin")
def asin(x: Any, **_: Any) -> Any:
    """atan2(x, sqrt((1 - x) (1 + x)))."""
    return lax.atan2(x, lax.sqrt((1 - x) * (1 + x)))


@spelled(rule, "acos")
def acos(x: Any, **_: Any) -> Any:
    """atan2(sqrt((1 - x) (1 + x)), x)."""
    return lax.atan2(lax.sqrt((1 - x) * (1 + x)), x)


@spelled(rule, "sinh")
def sinh(x: Any, **_: Any) -> Any:
    """Where e^x - 1 is small the quotient of it, else e^(|x| - log 2), which overflows no earlier than the result."""
    a = lax.abs(x)
    e = lax.expm1(lax.min(a, jnp.float32(1)))
    small = 0.5 * (e + e / (e + 1))
    large = lax.exp(a - log(2)) - lax.exp(-a - log(2))
    return lax.sign(x) * jnp.where(a < 1, small, large)


@spelled(rule, "cosh")
def cosh(x: Any, **_: Any) -> Any:
    """(e^x + e^-x) / 2, halved in the exponents, which overflow no earlier than the result."""
    return lax.exp(x - log(2)) + lax.exp(-x - log(2))


@spelled(rule, "asinh")
def asinh(x: Any, **_: Any) -> Any:
    """By log1p near 0, by a logarithm far away, where the square would overflow."""
    a = lax.abs(x)
    c = lax.min(a, jnp.float32(1e9))  # its square does not overflow
    near = lax.log1p(c + c * c / (1 + lax.sqrt(c * c + 1)))
    return lax.sign(x) * jnp.where(a < 1e9, near, lax.log(lax.max(a, jnp.float32(1))) + log(2))


@spelled(rule, "acosh")
def acosh(x: Any, **_: Any) -> Any:
    """By log1p near 1, by a logarithm far away, where the square would overflow; below 1 there is none."""
    t = lax.min(x, jnp.float32(1e9)) - 1
    near = lax.log1p(t + lax.sqrt(t * (t + 2)))
    far = lax.log(lax.max(x, jnp.float32(1))) + log(2)
    return jnp.where(x < 1, jnp.nan, jnp.where(x < 1e9, near, far))


@spelled(rule, "atanh")
def atanh(x: Any, **_: Any) -> Any:
    """(log1p(x) - log1p(-x)) / 2."""
    return 0.5 * (lax.log1p(x) - lax.log1p(-x))


@spelled(rule, "cbrt")
def cbrt(x: Any, **_: Any) -> Any:
    """By the logarithm, then a step of Newton's method; on a number in 1..8, so that nothing overflows."""
    a = lax.abs(x)
    safe = jnp.where((a > 0) & (a < jnp.inf), a, 1.0)
    scale = lax.floor(lax.log(safe) * (1 / log(8)))
    third = lax.exp(scale * (0.5 * log(2)))  # two halves: 2^scale itself may be too large to cube
    m = safe / third / third / third / third / third / third
    y = lax.exp(lax.log(m) * (1 / 3))
    y = y - (y - m / (y * y)) * (1 / 3)
    return lax.sign(x) * jnp.where((a > 0) & (a < jnp.inf), y * third * third, a)


@spelled(rule, "erf_inv")
def erf_inv(x: Any, **_: Any) -> Any:
    """Giles' polynomials of w = -log(1 - x^2), which XLA takes too."""
    w = -lax.log1p(-x * x)
    near = _polynomial(w - 2.5, (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                 -0.00125372503, -0.00417768164, 0.246640727, 1.50140941))  # fmt: skip
    far = _polynomial(lax.sqrt(lax.max(w, jnp.float32(5))) - 3,
                      (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                       0.00943887047, 1.00167406, 2.83297682))  # fmt: skip
    inside = jnp.where(w < 5, near, far) * x
    return jnp.where(lax.abs(x) == 1, x * jnp.inf, inside)


_LANCZOS = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
    -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip
_BASE, _G = 0.99999999999980993227684700473478, 7.0


def _lanczos_argument(x: Any) -> tuple[Any, Any]:
    """(whether x is reflected, z): Lanczos' series is for z >= -1/2."""
    reflected = x < 0.5
    return reflected, jnp.where(reflected, -x, x - 1)


@spelled(rule, "lgamma")
def lgamma(x: Any, **_: Any) -> Any:
    """Lanczos' approximation, and the reflection formula below 1/2, as XLA writes them."""
    reflected, z = _lanczos_argument(x)
    series = _BASE + sum(c / (z + (i + 1)) for i, c in enumerate(_LANCZOS))
    t = _G + 0.5 + z
    log_t = log(_G + 0.5) + lax.log1p(z / (_G + 0.5))
    value = (z + 0.5 - t / log_t) * log_t + log(2 * pi) / 2 + lax.log(series)
    part = lax.abs(x) - lax.floor(lax.abs(x))
    part = jnp.where(part > 0.5, 1 - part, part)
    sine = lax.log(lax.sin(pi * part))
    mirrored = jnp.where(lax.is_finite(sine), log(pi) - sine - value, -sine)
    return jnp.where(lax.abs(x) == jnp.inf, jnp.inf, jnp.where(reflected, mirrored, value))


@spelled(rule, "digamma")
def digamma(x: Any, **_: Any) -> Any:
    """The derivative of Lanczos' approximation, as XLA writes it."""
    reflected, z = _lanczos_argument(x)
    terms = [(c, z + (i + 1)) for i, c in enumerate(_LANCZOS)]
    numerator = sum(-c / (d * d) for c, d in terms)
    denominator = _BASE + sum(c / d for c, d in terms)
    t = _G + 0.5 + z
    value = log(_G + 0.5) + lax.log1p(z / (_G + 0.5)) + numerator / denominator - _G / t
    reduced = x + lax.abs(lax.floor(x + 0.5))
    mirrored = value - pi * lax.cos(pi * reduced) / lax.sin(pi * reduced)
    pole = (x <= 0) & (x == lax.floor(x))
    return jnp.where(pole, jnp.nan, jnp.where(reflected, mirrored, value))


def trigamma(x: Any) -> Any:
    """The derivative of digamma: its recurrence up to where the asymptotic series holds; reflected below 1/2."""
    reflected = x < 0.5
    z = jnp.where(reflected, 1 - x, x)
    shifted = z + 6
    w = 1 / (shifted * shifted)
    series = 1 / shifted + w / 2 + w / shifted * _polynomial(w, (-1 / 30, 1 / 42, -1 / 30, 1 / 6))
    value = sum((1 / ((z + k) * (z + k)) for k in range(6)), start=series)
    sine = lax.sin(pi * (x - lax.floor(x)))
    return jnp.where(reflected, (pi * pi) / (sine * sine) - value, value)
