"""Sums, means, extremes, sorting and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.frontends.torch.derivatives import absolute, largest_of_all, length, maximum, minimum, norm, root
from converter.frontends.torch.registry import Call, Rules

rule = Rules()


def _axes(x: Any, axes: Any) -> tuple[int, ...] | None:
    if axes is None or (isinstance(axes, Sequence) and not axes):
        return None
    return tuple(a % max(x.ndim, 1) for a in axes) if isinstance(axes, Sequence) else (axes % max(x.ndim, 1),)


def _over(function: Callable[..., Any]) -> Any:
    def reduced(call: Call, x: Any, axes: Any = None, keepdim: bool = False, **_: Any) -> Any:
        return function(jnp.asarray(x), axis=_axes(x, axes) if jnp.ndim(x) else None, keepdims=keepdim)

    return reduced


def _typed(function: Any) -> Any:
    def reduced(call: Call, x: Any, axes: Any = None, keepdim: bool = False, **_: Any) -> Any:
        x = jnp.asarray(x).astype(call.dtype)
        return function(x, axis=_axes(x, axes) if x.ndim else None, keepdims=keepdim)

    return reduced


_TYPED: dict[str, Callable[..., Any]] = {"sum": jnp.sum, "mean": jnp.mean, "prod": jnp.prod}
_OVER: dict[str, Callable[..., Any]] = {"amax": jnp.max, "amin": jnp.min, "any": jnp.any, "all": jnp.all}
for _name, _function in _TYPED.items():
    rule(_name)(_typed(_function))
for _name, _function in _OVER.items():
    rule(_name)(_over(_function))


@rule("argmax")
def argmax(call: Call, x: Any, axis: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmax(x, axis, keepdims=keepdim)


@rule("argmin")
def argmin(call: Call, x: Any, axis: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmin(x, axis, keepdims=keepdim)


@rule("max", "min")
def extreme(call: Call, x: Any, axis: Any = None, keepdim: bool = False) -> Any:
    least = "min" in str(call.node.target)
    if axis is None:
        return -largest_of_all(-x) if least else largest_of_all(x)
    if not isinstance(axis, int):  # of two tensors
        return minimum(x, axis) if least else maximum(x, axis)
    places = (jnp.argmin if least else jnp.argmax)(x, axis, keepdims=True)
    values = jnp.take_along_axis(x, places, axis, mode="clip")
    return (values, places) if keepdim else (jnp.squeeze(values, axis), jnp.squeeze(places, axis))


def _variance(x: Any, axes: Any, correction: float, keepdim: bool) -> Any:
    return jnp.var(x, _axes(x, axes), ddof=correction, keepdims=keepdim)  # type: ignore[arg-type]


def _correction(rest: Sequence[Any], options: dict[str, Any]) -> tuple[Any, float, bool]:
    """Axes, correction and keepdim of the overloads of var and std."""
    keepdim = bool(options.get("keepdim", False))
    if rest and isinstance(rest[0], bool):
        return None, float(rest[0]), keepdim
    axes = rest[0] if rest else options.get("dim")
    if len(rest) > 1:
        return axes, float(rest[1]), bool(rest[2]) if len(rest) > 2 else keepdim
    correction = options.get("correction", 1.0)
    unbiased = options.get("unbiased")
    correction = 1.0 if correction is None else correction
    return axes, float(correction if unbiased is None else unbiased), keepdim


@rule("var")
def var(call: Call, x: Any, *rest: Any, **options: Any) -> Any:
    axes, correction, keepdim = _correction(rest, options)
    return _variance(x, axes, correction, keepdim)


@rule("std")
def std(call: Call, x: Any, *rest: Any, **options: Any) -> Any:
    return root(var(call, x, *rest, **options))


@rule("var_mean")
def var_mean(call: Call, x: Any, *rest: Any, **options: Any) -> Any:
    axes, correction, keepdim = _correction(rest, options)
    return _variance(x, axes, correction, keepdim), jnp.mean(x, _axes(x, axes), keepdims=keepdim)


@rule("logsumexp")
def logsumexp(call: Call, x: Any, axes: Any, keepdim: bool = False) -> Any:
    return jax.nn.logsumexp(x, _axes(x, axes), keepdims=keepdim)


@rule("linalg_vector_norm", "norm")
def vector_norm(call: Call, x: Any, order: Any = 2, axes: Any = None, keepdim: bool = False, **_: Any) -> Any:
    chosen = _axes(x, axes)
    order = 2 if order is None else order
    if order == 2:
        return length(x, chosen, keepdim)
    if order == 1:
        return jnp.sum(absolute(x), chosen, keepdims=keepdim)
    if order in (float("inf"), float("-inf")):
        return (jnp.max if order > 0 else jnp.min)(absolute(x), chosen, keepdims=keepdim)
    if order == 0:
        return jnp.sum((x != 0).astype(x.dtype), chosen, keepdims=keepdim)
    return norm(x, order, chosen, keepdim)


@rule("cdist", "_cdist_forward")
def cdist(call: Call, x: Any, y: Any, order: float = 2.0, *_: Any) -> Any:
    separate = jnp.expand_dims(x, -2) - jnp.expand_dims(y, -3)
    return root(jnp.sum(separate * separate, -1)) if order == 2 else vector_norm(call, separate, order, -1)


@rule("dist")
def dist(call: Call, x: Any, y: Any, order: float = 2.0) -> Any:
    return vector_norm(call, x - y, order)


@rule("cosine_similarity")
def cosine_similarity(call: Call, x: Any, y: Any, axis: int = 1, epsilon: float = 1e-8) -> Any:
    def length(z: Any) -> Any:  # the least one has the slope of the one in its place
        made = root(jnp.sum(z * z, axis, keepdims=True))
        return made + lax.stop_gradient(jnp.maximum(made, epsilon) - made)

    x, y = jnp.broadcast_arrays(x, y)
    return jnp.sum(x / length(x) * (y / length(y)), axis)


@rule("cumsum")
def cumsum(call: Call, x: Any, axis: int, **_: Any) -> Any:
    return jnp.cumsum(jnp.asarray(x).astype(call.dtype), axis)


@rule("cumprod")
def cumprod(call: Call, x: Any, axis: int, **_: Any) -> Any:
    return jnp.cumprod(jnp.asarray(x).astype(call.dtype), axis)


@rule("topk")
def topk(call: Call, x: Any, count: int, axis: int = -1, largest: bool = True, *_: Any) -> Any:
    last = jnp.moveaxis(x, axis, -1)
    values, places = lax.top_k(last if largest else -last, count)
    values = values if largest else -values
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(places, -1, axis)


@rule("sort")
def sort(call: Call, x: Any, *rest: Any, **options: Any) -> Any:
    numbers = [r for r in rest if not isinstance(r, bool)]
    axis = options.get("dim", numbers[0] if numbers else -1)
    flags = [r for r in rest if isinstance(r, bool)]
    places = jnp.argsort(
        x, axis, stable=True, descending=bool(options.get("descending", flags[-1] if flags else False))
    )
    return jnp.take_along_axis(x, places, axis, mode="clip"), places


@rule("median.dim")
def median(call: Call, x: Any, axis: int = -1, keepdim: bool = False) -> Any:
    middle = (x.shape[axis] - 1) // 2
    made = [lax.slice_in_dim(part, middle, middle + 1, axis=axis) for part in sort(call, x, axis)]
    return made if keepdim else [jnp.squeeze(part, axis) for part in made]


@rule("argsort")
def argsort(call: Call, x: Any, *rest: Any, **options: Any) -> Any:
    return sort(call, x, *rest, **options)[1]


@rule("count_nonzero")
def count_nonzero(call: Call, x: Any, axes: Any = None) -> Any:
    return jnp.sum((x != 0).astype(np.int32), _axes(x, axes))
