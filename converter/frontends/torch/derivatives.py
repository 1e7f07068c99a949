"""Functions whose derivative PyTorch chooses otherwise than JAX where there is none: at kinks, ties and roots of 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def derived(function: Callable[..., Any], backward: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return a function of arrays with a derivative of its own.

    Args:
        function: of arrays of one shape, to one of that shape.
        backward: takes the cotangent, the arrays and the value; returns a cotangent for each array.
    """
    made = jax.custom_vjp(function)

    def forward(*arrays: Any) -> tuple[Any, tuple[Any, ...]]:
        value = function(*arrays)
        return value, (*arrays, value)

    made.defvjp(forward, lambda saved, dy: backward(dy, *saved))
    return made


#: |x|, flat at 0, but for an infinite cotangent.
absolute = derived(jnp.abs, lambda dy, x, y: (dy * jnp.sign(x),))
#: The square root, flat at 0 whatever cotangent comes: that of a variance, or of a distance.
root = derived(jnp.sqrt, lambda dy, x, y: (jnp.where(y == 0, 0.0, dy * 0.5 / jnp.where(y == 0, 1.0, y)),))


def maximum(x: Any, y: Any) -> Any:
    """Return the larger of two arrays; the other has the derivative 0 whatever cotangent comes, equal ones a half."""
    return _extreme(jnp.maximum, jnp.greater, x, y)


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller of two arrays; the other has the derivative 0 whatever cotangent comes, equal ones a half."""
    return _extreme(jnp.minimum, jnp.less, x, y)


def _extreme(function: Callable[..., Any], wins: Callable[..., Any], x: Any, y: Any) -> Any:
    x, y = jnp.asarray(x), jnp.asarray(y)
    if jnp.result_type(x, y).kind != "f":
        return function(x, y)

    def backward(dy: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        even = jnp.where(x == y, dy * 0.5, 0.0)
        return jnp.where(wins(x, y), dy, even), jnp.where(wins(y, x), dy, even)

    dtype = jnp.result_type(x, y)
    return derived(function, backward)(*jnp.broadcast_arrays(x.astype(dtype), y.astype(dtype)))


def clipped(x: Any, low: Any = None, high: Any = None) -> Any:
    """Return x between two numbers, of which either may be None; flat at both."""
    if low == 0 and high is None:
        return jax.nn.relu(x)
    if low == 0 and high == 6:
        return jax.nn.relu6(x)

    def backward(dy: Any, x: Any, y: Any) -> tuple[Any]:
        for outside in ([] if low is None else [x <= low]) + ([] if high is None else [x >= high]):
            dy = jnp.where(outside, 0.0, dy)
        return (dy,)

    function: Callable[[Any], Any] = lambda x: jnp.clip(x, low, high)  # noqa: E731
    return derived(function, backward)(x) if x.dtype.kind == "f" else function(x)


def between(x: Any, low: Any, high: Any) -> Any:
    """Return x between two arrays; at one of them each gets half the cotangent, where all three are equal x has all."""

    def backward(dy: Any, x: Any, low: Any, high: Any, y: Any) -> tuple[Any, Any, Any]:
        separate = jnp.where(low == high, 0.0, 0.5)
        to_low = jnp.where(x < low, 1.0, jnp.where(x == low, separate, 0.0)) * (low <= high)
        to_high = jnp.where((x > high) | (low > high), 1.0, jnp.where(x == high, separate, 0.0))
        shares = 1.0 - to_low - to_high, to_low, to_high
        return tuple(jnp.where(share == 0, 0.0, dy * share) for share in shares)

    return derived(_clip, backward)(*jnp.broadcast_arrays(x, low, high))


def _clip(x: Any, low: Any, high: Any) -> Any:
    return jnp.minimum(jnp.maximum(x, low), high)


def power_of(x: Any, y: Any) -> Any:
    """Return x ** y of arrays; of 0 ** 0 no derivative is infinite or NaN."""

    def backward(dy: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        to_x = jnp.where(y == 0, 0.0, dy * y * jnp.power(x, jnp.where(y == 0, 1.0, y - 1.0)))
        nothing = (x == 0) & (y >= 0)
        return to_x, jnp.where(nothing, 0.0, dy * z * jnp.log(jnp.where(nothing, 1.0, x)))

    return derived(jnp.power, backward)(*jnp.broadcast_arrays(x, y))


def angle(y: Any, x: Any) -> Any:
    """Return the angle of points (x, y); flat at (0, 0), but for an infinite cotangent."""

    def backward(dy: Any, y: Any, x: Any, z: Any) -> tuple[Any, Any]:
        squares = x * x + y * y
        inverse = jnp.where(squares == 0, 0.0, 1.0 / jnp.where(squares == 0, 1.0, squares))
        return dy * x * inverse, dy * -y * inverse

    return derived(jnp.arctan2, backward)(*jnp.broadcast_arrays(y, x))


def largest_of_all(x: Any) -> Any:
    """Return the largest element; equal ones share the cotangent, the rest has 0 whatever it is."""

    def backward(dy: Any, x: Any, y: Any) -> tuple[Any]:
        hit = x == y
        return (jnp.where(hit, dy / jnp.sum(hit, dtype=x.dtype), 0.0),)

    return derived(lambda x: jnp.max(x), backward)(x) if x.dtype.kind == "f" else jnp.max(x)


def finite(x: Any, nan: float, above: float | None, below: float | None) -> Any:
    """Return x with other numbers for NaN and infinity, where it is flat, but for an infinite cotangent."""

    def function(x: Any) -> Any:
        return jnp.nan_to_num(x, nan=nan, posinf=above, neginf=below)

    return derived(function, lambda dy, x, y: (dy * jnp.isfinite(x),))(x) if x.dtype.kind == "f" else x


def length(x: Any, axes: Any, keepdim: bool) -> Any:
    """Return the root of the sum of squares over axes; flat at 0, but for an infinite cotangent."""

    def function(x: Any) -> Any:
        return jnp.sqrt(jnp.sum(x * x, axes, keepdims=True))

    def backward(dy: Any, x: Any, y: Any) -> tuple[Any]:
        return (dy * jnp.where(y == 0, 0.0, x / jnp.where(y == 0, 1.0, y)),)

    return _squeezed(derived(function, backward)(x), x, axes, keepdim)


def _squeezed(y: Any, x: Any, axes: Any, keepdim: bool) -> Any:
    return y if keepdim else lax.squeeze(y, [a % x.ndim for a in (range(x.ndim) if axes is None else axes)])


def norm(x: Any, order: float, axes: Any, keepdim: bool) -> Any:
    """Return (sum |x|^order)^(1 / order) over axes; flat at 0."""

    def function(x: Any) -> Any:
        return jnp.sum(jnp.abs(x) ** order, axes, keepdims=True) ** (1 / order)

    def backward(dy: Any, x: Any, y: Any) -> tuple[Any]:
        size, zero = jnp.abs(x), (x == 0) | (y == 0)
        slope = jnp.sign(x) * (jnp.where(zero, 1.0, size) / jnp.where(y == 0, 1.0, y)) ** (order - 1)
        return (jnp.where(zero, 0.0, dy * slope),)

    return _squeezed(derived(function, backward)(x), x, axes, keepdim)
