"""Rules for reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.ir import BOOL, FLOAT32, INT32, Builder, Op, Value, ops
from converter.support.errors import NotImportable
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.bits import bitwise_and, bitwise_or
from jax_frontend.rules.ordering import opposite
from jax_frontend.rules.shape import cut_axis, with_rank
from jax_frontend.rules.spelled import Formula, structs, written_out
from jax_frontend.unsupported import HINTS, UnsupportedForm

rule = ImportRules()

_NAMED_AXES = UnsupportedForm("psum", HINTS["psum"])
_OWN_FUNCTION = UnsupportedForm("a reduction by a function of one's own", "use jnp.sum, max, min, prod, any or all")


def _axes(call: Equation) -> tuple[int, ...]:
    return tuple(sorted(int(a) for a in call.params["axes"]))


@rule("reduce_sum", broadcasts=True)
def reduce_sum(call: Equation, x: Value) -> Result:
    """Sum; over an axis along which the operand only repeats, a multiple."""
    b, axes, type = call.b, _axes(call), call.inputs[0]
    x = b.reshape(x, with_rank(x.shape, type.rank))
    repeated = prod(type.shape[a] for a in axes if x.shape[a] == 1)
    total = b(ops.Sum(axes), x) if axes else x
    return total if repeated == 1 else b(ops.Mul(), total, repeated)


def _extremum(name: str, reduction: type[ops.Reduction], of_bools: Op) -> None:
    @rule(name, broadcasts=True)
    def apply(call: Equation, x: Value) -> Result:
        """Largest or smallest element."""
        b, axes = call.b, _axes(call)
        x = b.reshape(x, with_rank(x.shape, call.inputs[0].rank))
        if x.dtype == BOOL:
            return folded(b, x, axes, of_bools)
        return b(reduction(axes), x) if axes else x


_extremum("reduce_max", ops.Max, ops.LogicalOr())
_extremum("reduce_min", ops.Min, ops.LogicalAnd())


def folded(b: Builder, x: Value, axes: tuple[int, ...], op: Op | Callable[[Value, Value], Value]) -> Value:
    """Reduces by an associative operation: one half against the other, until one element is left."""
    combine = op if callable(op) else partial(b, op)
    for axis in reversed(axes):
        while x.shape[axis] > 1:
            half, odd = divmod(x.shape[axis], 2)
            made = combine(cut_axis(b, x, axis, 0, half), cut_axis(b, x, axis, half, half))
            x = b(ops.Concat(axis), made, cut_axis(b, x, axis, 2 * half, 1)) if odd else made
    return b.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


@rule("reduce_prod")
def reduce_prod(call: Equation, x: Value) -> Result:
    """Product; of none 1."""
    if not x.type.size:
        return call.b.constant(np.ones(call.output.shape, x.dtype))
    return folded(call.b, x, _axes(call), ops.Mul())


def _some(name: str, reduction: type[ops.Reduction], of_integers: Formula) -> None:

    @rule(name)
    def apply(call: Equation, x: Value) -> Result:
        """Of bools by a reduction of numbers, which is one kernel; of integers bit by bit."""
        if x.dtype != BOOL:
            return _bitwise(call, x, of_integers)
        if not x.type.size:
            return call.b.constant(np.full(call.output.shape, reduction is ops.Min))
        numbers = call.b(reduction(_axes(call)), call.b(ops.Cast(FLOAT32), x))
        return call.b(ops.NotEqual(), numbers, 0.0)


def _bitwise(call: Equation, x: Value, formula: Formula) -> Value:
    return folded(call.b, x, _axes(call), lambda u, v: written_out(replace(call, params={}), formula, (u, v))[0])


_some("reduce_or", ops.Max, bitwise_or)
_some("reduce_and", ops.Min, bitwise_and)


@rule("reduce_xor")
def reduce_xor(call: Equation, x: Value) -> Result:
    """Whether an odd number holds; of integers bit by bit."""
    return folded(call.b, x, _axes(call), ops.NotEqual() if x.dtype == BOOL else ops.BitwiseXor())


@rule("psum", refuses=[_NAMED_AXES])
def psum(call: Equation, *values: Value) -> Result:
    """Over axes of the operands, which jax.vmap leaves of named ones; there are no others on one device."""
    axes = call.params["axes"]
    if any(isinstance(axis, str) for axis in axes) or call.params["axis_index_groups"] is not None:
        raise NotImportable(*_NAMED_AXES)
    return [call.b(ops.Sum(tuple(sorted(axes))), x) for x in values]


@rule("argmax")
def argmax(call: Equation, x: Value) -> Result:
    """Index of the first largest element."""
    (axis,) = _axes(call)
    return call.b(ops.ArgMax(axis), call.b(ops.Cast(INT32), x) if x.dtype == BOOL else x)


@rule("argmin")
def argmin(call: Equation, x: Value) -> Result:
    """Index of the first smallest element."""
    (axis,) = _axes(call)
    return call.b(ops.ArgMax(axis), opposite(call.b, x))


@rule("cumsum")
def cumsum(call: Equation, x: Value) -> Result:
    """Running sum."""
    op = ops.CumSum(int(call.params["axis"]), bool(call.params["reverse"]))
    return call.b(op, x)


def _running(name: str, combine: Formula) -> None:
    @rule(name)
    def apply(call: Equation, x: Value) -> Result:
        """In a logarithmic number of steps, as JAX differentiates it."""
        axis, reverse = int(call.params["axis"]), bool(call.params["reverse"])

        def scan(array: Any) -> Any:
            return lax.associative_scan(combine, array, reverse=reverse, axis=axis)

        return call.inline(jax.make_jaxpr(scan)(*structs((x,))), (x,))


_running("cumprod", lax.mul)
_running("cummax", lax.max)
_running("cummin", lax.min)
_running("cumlogsumexp", jnp.logaddexp)


@rule("reduce", refuses=[_OWN_FUNCTION])
def reduce_(call: Equation, *values: Value) -> Result:
    """One operand by an operation that is known, from any start."""
    b, op = call.b, monoid(call.params["jaxpr"])
    if len(values) != 2 or op is None:
        raise NotImportable(*_OWN_FUNCTION)
    x, start = values
    axes = tuple(sorted(int(a) for a in call.params["dimensions"]))
    if isinstance(op, ops.Add | ops.Maximum | ops.Minimum) and x.dtype != BOOL:
        kind = {ops.Add: ops.Sum, ops.Maximum: ops.Max, ops.Minimum: ops.Min}[type(op)]
        made = b(kind(axes), x) if axes else x
    else:
        made = folded(b, x, axes, op)
    return b(op, made, start)


def monoid(closed: Any) -> Op | None:
    """The operation of a jaxpr of one equation on its two arguments, if it is associative and has a unit."""
    jaxpr = getattr(closed, "jaxpr", closed)
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].params.get("jaxpr") is not None:
        nested = jaxpr.eqns[0].params.get("jaxpr") if len(jaxpr.eqns) == 1 else None
        return monoid(nested) if nested is not None else None
    (eqn,) = jaxpr.eqns
    if list(jaxpr.outvars) != list(eqn.outvars) or {id(v) for v in eqn.invars} != {id(v) for v in jaxpr.invars}:
        return None
    is_bool = str(jaxpr.invars[0].aval.dtype) == "bool"
    return (_OF_BOOLS if is_bool else _OF_NUMBERS).get(eqn.primitive.name)


_OF_NUMBERS: dict[str, Op] = {
    "add": ops.Add(),
    "add_any": ops.Add(),
    "mul": ops.Mul(),
    "max": ops.Maximum(),
    "min": ops.Minimum(),
}
_OF_BOOLS: dict[str, Op] = {
    "or": ops.LogicalOr(),
    "and": ops.LogicalAnd(),
    "max": ops.LogicalOr(),
    "min": ops.LogicalAnd(),
    "xor": ops.NotEqual(),
}
