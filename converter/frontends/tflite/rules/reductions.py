"""Reductions over axes."""

from __future__ import annotations

from converter.frontends.tflite.registry import Call, Result, Rules
from converter.ir import FLOAT32, Op, Value, ops
from converter.support.errors import NotImportable

rule = Rules()

#: A product is taken factor by factor.
_MOST_FACTORS = 256

_KINDS: dict[str, type[Op]] = {"SUM": ops.Sum, "MEAN": ops.Mean, "REDUCE_MAX": ops.Max, "REDUCE_MIN": ops.Min}


@rule(*_KINDS)
def reduction(call: Call, x: Value, axes: Value) -> Result:
    """Over axes that are known."""
    given = tuple(sorted({int(a) % len(x.shape) for a in call.known(axes, "axes").reshape(-1)}))
    keeps = bool(call.option("keepDims", False))
    if not given:
        return x
    return call.b(_KINDS[call.operator.kind](given, keeps), x)  # type: ignore[call-arg]


@rule("REDUCE_PROD")
def product(call: Call, x: Value, axes: Value) -> Result:
    """The product, number by number."""
    b, rank = call.b, len(x.shape)
    given = sorted({int(a) % rank for a in call.known(axes, "axes").reshape(-1)})
    for axis in given:
        if x.shape[axis] > _MOST_FACTORS:
            raise NotImportable(f"REDUCE_PROD of {x.shape[axis]} numbers, which are more than {_MOST_FACTORS}")
        total: Value | None = None
        for i in range(x.shape[axis]):
            starts = tuple(i if a == axis else 0 for a in range(rank))
            sizes = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
            factor = b(ops.Slice(starts, sizes), x)
            total = factor if total is None else b(ops.Mul(), total, factor)
        x = x if total is None else total
    return (
        x if call.option("keepDims", False) else b.reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in given))
    )


@rule("REDUCE_ANY", "REDUCE_ALL")
def any_or_all(call: Call, x: Value, axes: Value) -> Result:
    """Whether one holds, or all do."""
    b, kind = call.b, ops.Max if call.operator.kind == "REDUCE_ANY" else ops.Min
    given = tuple(sorted({int(a) % len(x.shape) for a in call.known(axes, "axes").reshape(-1)}))
    return b(ops.Greater(), b(kind(given, bool(call.option("keepDims", False))), b(ops.Cast(FLOAT32), x)), 0.5)


@rule("ARG_MAX", "ARG_MIN")
def arg_max(call: Call, x: Value, axis: Value) -> Result:
    """The place of the largest number, or of the smallest."""
    along = int(call.known(axis, "axes").reshape(())) % len(x.shape)
    return call.b(ops.ArgMax(along), x if call.operator.kind == "ARG_MAX" else call.b(ops.Neg(), x))


@rule("CUMSUM")
def cumsum(call: Call, x: Value, axis: Value) -> Result:
    """The sums so far, from the other end if `reverse`; without the number itself if `exclusive`."""
    along = int(call.known(axis, "axes").reshape(())) % len(x.shape)
    summed = call.b(ops.CumSum(along, bool(call.option("reverse", False))), x)
    return call.b(ops.Sub(), summed, x) if call.option("exclusive", False) else summed
