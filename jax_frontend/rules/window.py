"""reduce_window_*: pooling over NHWC where the kernels can, else slices of the windows against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.ir import FLOAT32, Builder, Op, Value, ops
from converter.support.errors import NotImportable
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.reduction import monoid
from jax_frontend.rules.shape import cut, padded
from jax_frontend.rules.spelled import written_out
from jax_frontend.unsupported import UnsupportedForm

rule = ImportRules()

#: Windows of more positions than this along one axis are not sliced.
LONGEST_WINDOW = 64
_LONG = UnsupportedForm(f"a window of more than {LONGEST_WINDOW} positions", "use a smaller window")
_OWN_FUNCTION = UnsupportedForm("windows reduced by a function of one's own", "use max, min, sum or product")


@dataclass(frozen=True)
class _Axis:
    """What one axis of a reduce_window does."""

    window: int = 1
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    spread: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the pooling kernels can do it: no gaps, no cropping, no window that only padding fills."""
        low, high = self.padding
        return self.dilation == self.spread == 1 and min(low, high) >= 0 and max(low, high) < max(self.window, 2)


def _axes(p: dict[str, Any]) -> list[_Axis]:
    names = ("window_dimensions", "window_strides", "padding", "window_dilation", "base_dilation")
    return [
        _Axis(int(window), int(stride), (int(low), int(high)), int(dilation), int(spread))
        for window, stride, (low, high), dilation, spread in zip(*(p[name] for name in names), strict=True)
    ]


def _windows(b: Builder, x: Value, axes: list[_Axis], op: Op) -> Value:
    """One pair of axes after the other, the last first: of equal elements the first in row-major order stays first."""
    x = _spread(b, x, axes, op)
    axes = [_Axis(a.window, a.stride, (0, 0) if a.spread > 1 else a.padding, a.dilation) for a in axes]
    left = [i for i, a in enumerate(axes) if a != _Axis()]
    while left:
        pair = left[-2:]
        if _pools(x, axes, pair, op):
            x = _pooled(b, x, axes, pair, op)
        else:
            pair = left[-1:]
            x = _sliced(b, x, pair[0], axes[pair[0]], op)
        left = left[: -len(pair)]
    return x


def _spread(b: Builder, x: Value, axes: list[_Axis], op: Op) -> Value:
    """The unit between elements, for base dilation, and around them then."""
    if all(a.spread == 1 for a in axes):
        return x
    config = [(*(a.padding if a.spread > 1 else (0, 0)), a.spread - 1) for a in axes]
    zeros = padded(b, x, config)
    if isinstance(op, ops.Add):
        return zeros
    marks = padded(b, b.broadcast_to(b.constant(np.float32(1)), x.shape), config)
    return b(ops.Select(), b(ops.Greater(), marks, 0.0), zeros, b.constant(_unit(op, x.dtype)))


def _unit(op: Op, dtype: np.dtype) -> np.ndarray:
    """What changes nothing; of integers the end of their range is as good as infinity."""
    assert isinstance(op, ops.Binary)
    unit = 0.0 if isinstance(op, ops.NotEqual) else op.identity  # of bools it is the exclusive or
    assert unit is not None
    if dtype.kind == "i" and not isfinite(unit):
        ends = np.iinfo(dtype)
        return np.asarray(ends.min if unit < 0 else ends.max, dtype)
    return np.asarray(unit, dtype)


def _pools(x: Value, axes: list[_Axis], pair: list[int], op: Op) -> bool:
    return (
        x.dtype == FLOAT32
        and all(axes[i].is_plain for i in pair)
        and isinstance(op, ops.Maximum | ops.Minimum | ops.Add)
    )


def _pooled(b: Builder, x: Value, axes: list[_Axis], pair: list[int], op: Op) -> Value:
    """A pooling op, over one or two axes wherever they stand."""
    rest = [a for a in range(len(x.shape)) if a not in pair]
    channels = rest[-1:] if len(rest) > 1 or not rest else []
    outer = [a for a in rest if a not in channels]
    perm = (*outer, *pair, *channels)
    moved = b.transpose(x, perm)
    spatial = (1,) * (2 - len(pair)) + tuple(x.shape[a] for a in pair)
    image = b.reshape(moved, (prod(x.shape[a] for a in outer), *spatial, prod(x.shape[a] for a in channels)))
    pairs = [(axes[a].window, axes[a].stride, axes[a].padding) for a in pair]
    sizes, steps, pads = zip(*([(1, 1, (0, 0))] * (2 - len(pair)) + pairs), strict=True)
    pool = (ops.SumPool2D if isinstance(op, ops.Add) else ops.MaxPool2D)(sizes, steps, pads)
    y = b(ops.Neg(), b(pool, b(ops.Neg(), image))) if isinstance(op, ops.Minimum) else b(pool, image)
    short = dict(zip(pair, y.shape[3 - len(pair) : 3], strict=True))
    shape = tuple(short.get(a, x.shape[a]) for a in perm)
    return b.transpose(b.reshape(y, shape), tuple(int(i) for i in np.argsort(perm)))


def _sliced(b: Builder, x: Value, axis: int, a: _Axis, op: Op) -> Value:
    """Every position of the window along one axis as a strided slice; of equal extrema the first is taken."""
    if a.window > LONGEST_WINDOW:
        raise NotImportable(*_LONG)
    config = [(*a.padding, 0) if i == axis else (0, 0, 0) for i in range(len(x.shape))]
    unit = _unit(op, x.dtype)
    if x.dtype == FLOAT32 or not unit:
        x = padded(b, x, config, float(unit))
    else:
        marks = padded(b, b.broadcast_to(b.constant(np.float32(1)), x.shape), config)
        x = b(ops.Select(), b(ops.Greater(), marks, 0.0), padded(b, x, config), b.constant(unit))
    count = (x.shape[axis] - (a.window - 1) * a.dilation - 1) // a.stride + 1
    size = tuple(count if i == axis else n for i, n in enumerate(x.shape))
    strides = tuple(a.stride if i == axis else 1 for i in range(len(x.shape)))
    total: Value | None = None
    for place in range(a.window):
        begin = tuple(place * a.dilation if i == axis else 0 for i in range(len(x.shape)))
        part = cut(b, x, begin, size, strides if a.stride > 1 else ())
        total = part if total is None else _taken(b, op, total, part)
    assert total is not None
    return total


def _taken(b: Builder, op: Op, before: Value, new: Value) -> Value:
    if isinstance(op, ops.Maximum):
        return b(ops.Select(), b(ops.Greater(), new, before), new, before)
    if isinstance(op, ops.Minimum):
        return b(ops.Select(), b(ops.Less(), new, before), new, before)
    return b(op, before, new)


def _reduce_window(name: str, op: Op) -> None:
    @rule(name, refuses=[_LONG])
    def apply(call: Equation, x: Value) -> Result:
        """A pool where the window is one, else the positions of the window one after the other."""
        return _windows(call.b, x, _axes(call.params), op)


_reduce_window("reduce_window_max", ops.Maximum())
_reduce_window("reduce_window_min", ops.Minimum())
_reduce_window("reduce_window_sum", ops.Add())


@rule("reduce_window", refuses=[_OWN_FUNCTION, _LONG])
def reduce_window(call: Equation, *values: Value) -> Result:
    """By an operation that is known, from any start."""
    op = monoid(call.params["jaxpr"])
    if len(values) != 2 or op is None:
        raise NotImportable(*_OWN_FUNCTION)
    x, start = values
    return call.b(op, _windows(call.b, x, _axes(call.params), op), start)


@rule("select_and_scatter_add")
def select_and_scatter_add(call: Equation, source: Value, operand: Value) -> Result:
    """The derivative of a pool: each number to the first largest (or smallest) element of its window."""
    return written_out(call, _select_and_scatter_add, (source, operand))


def _select_and_scatter_add(
    source: Any, operand: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any
) -> Any:
    """Position by position of the window; what has been given away is not there for the next one."""
    largest = select_prim.name.startswith("ge")
    around = [(low, high, 0) for low, high in padding]
    x = lax.pad(operand, jnp.float32(-np.inf if largest else np.inf), around)

    def window(array: Any, start: Sequence[int]) -> Any:
        end = [s + (n - 1) * t + 1 for s, n, t in zip(start, source.shape, window_strides, strict=True)]
        return lax.slice(array, start, end, window_strides)

    starts = list(np.ndindex(*window_dimensions))
    pick: Callable[[Any, Any], Any] = lax.max if largest else lax.min
    best = window(x, starts[0])
    for start in starts[1:]:
        best = pick(best, window(x, start))
    total, left = jnp.zeros_like(x), jnp.ones_like(source, bool)
    for start in starts:
        hit = (window(x, start) == best) & left
        left = left & ~hit
        given = jnp.where(hit, source, 0)
        config = [
            (s, whole - s - ((n - 1) * t + 1), t - 1)
            for s, whole, n, t in zip(start, x.shape, source.shape, window_strides, strict=True)
        ]
        total = total + lax.pad(given, jnp.float32(0), config)
    return lax.pad(total, jnp.float32(0), [(-low, -high, 0) for low, high, _ in around])
