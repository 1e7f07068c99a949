"""Rules for reductions."""

from __future__ import annotations

from functools import reduce
from math import prod

from converter.ir import BOOL, FLOAT32, Value, ops
from jax_frontend.registry import Call, NotImportable, Result, rule
from jax_frontend.rules.shape import cut_axis, with_rank

#: A product over more elements than this is not unrolled.
LARGEST_PRODUCT = 64


def _axes(call: Call) -> tuple[int, ...]:
    return tuple(sorted(int(a) for a in call.params["axes"]))


@rule("reduce_sum", broadcasts=True)
def reduce_sum(call: Call, x: Value) -> Result:
    """Sum; over an axis along which the operand only repeats, a multiple."""
    b, axes, type = call.b, _axes(call), call.inputs[0]
    x = b.reshape(x, with_rank(x.shape, type.rank))
    repeated = prod(type.shape[a] for a in axes if x.shape[a] == 1)
    total = b(ops.Sum(axes), x) if axes else x
    return total if repeated == 1 else b(ops.Mul(), total, repeated)


@rule("reduce_max", broadcasts=True)
def reduce_max(call: Call, x: Value) -> Result:
    """Largest element."""
    x = call.b.reshape(x, with_rank(x.shape, call.inputs[0].rank))
    return call.b(ops.Max(_axes(call)), x) if _axes(call) else x


@rule("reduce_min", broadcasts=True)
def reduce_min(call: Call, x: Value) -> Result:
    """Smallest element."""
    x = call.b.reshape(x, with_rank(x.shape, call.inputs[0].rank))
    return call.b(ops.Min(_axes(call)), x) if _axes(call) else x


@rule("reduce_prod")
def reduce_prod(call: Call, x: Value) -> Result:
    """Product of few elements, spelled out."""
    b = call.b
    for axis in reversed(_axes(call)):
        if x.shape[axis] > LARGEST_PRODUCT:
            raise NotImportable(f"a product over more than {LARGEST_PRODUCT} elements", "sum logarithms instead")
        rest = x.shape[:axis] + x.shape[axis + 1 :]
        slices = [b.reshape(cut_axis(b, x, axis, i, 1), rest) for i in range(x.shape[axis])]
        x = reduce(lambda u, v: b(ops.Mul(), u, v), slices)
    return x


def _logical(name: str, reduction: type[ops.Reduction]) -> None:
    @rule(name)
    def apply(call: Call, x: Value) -> Result:
        if x.dtype != BOOL:
            raise NotImportable("bitwise reduction of integers", "use bools")
        numbers = call.b(reduction(_axes(call)), call.b(ops.Cast(FLOAT32), x))
        return call.b(ops.NotEqual(), numbers, 0.0)


_logical("reduce_or", ops.Max)
_logical("reduce_and", ops.Min)


@rule("argmax")
def argmax(call: Call, x: Value) -> Result:
    """Index of the first largest element."""
    (axis,) = _axes(call)
    return call.b(ops.ArgMax(axis), x)


@rule("argmin")
def argmin(call: Call, x: Value) -> Result:
    """Index of the first smallest element."""
    (axis,) = _axes(call)
    return call.b(ops.ArgMax(axis), call.b(ops.Neg(), x))


@rule("cumsum")
def cumsum(call: Call, x: Value) -> Result:
    """Running sum."""
    op = ops.CumSum(int(call.params["axis"]), bool(call.params["reverse"]))
    return call.b(op, x)
