"""Rules for elementwise primitives. Operands may be smaller than JAX says: the IR's ops broadcast."""

from __future__ import annotations

import inspect
from functools import reduce
from math import log

import jax.numpy as jnp
import numpy as np

from converter.ir import BOOL, FLOAT32, Builder, Op, Value, ops
from converter.ir.random_numbers import LARGEST_DIVISOR, unsigned_remainder
from converter.support.errors import NotImportable
from jax_frontend.importer import full
from jax_frontend.integers import clamped
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.bits import rounded, unsigned_rem
from jax_frontend.rules.functions import trigamma
from jax_frontend.rules.random import drawn
from jax_frontend.rules.spelled import with_derivative, without_derivative, written_out
from jax_frontend.unsupported import UnsupportedForm

rule = ImportRules()

_COMPUTED_RANGE = UnsupportedForm("jax.random.randint between numbers that are computed")
_HIGHER_ORDER = UnsupportedForm("polygamma of an order other than 1", "digamma and its derivative are what there is")

_UNARY: dict[str, Op] = {
    "neg": ops.Neg(),
    "exp": ops.Exp(),
    "log": ops.Log(),
    "sqrt": ops.Sqrt(),
    "rsqrt": ops.Rsqrt(),
    "tanh": ops.Tanh(),
    "logistic": ops.Logistic(),
    "sin": ops.Sin(),
    "cos": ops.Cos(),
    "abs": ops.Abs(),
    "sign": ops.Sign(),
    "floor": ops.Floor(),
    "ceil": ops.Ceil(),
    "erf": ops.Erf(),
    "erfc": ops.Erfc(),
    "log1p": ops.Log1p(),
    "expm1": ops.Expm1(),
}
_BINARY: dict[str, Op] = {
    "add": ops.Add(),
    "add_any": ops.Add(),
    "sub": ops.Sub(),
    "mul": ops.Mul(),
    "eq": ops.Equal(),
    "ne": ops.NotEqual(),
    "atan2": ops.Atan2(),
}
#: For numbers; and for bools, which of two is negated (None for neither) before which op.
_ORDERED: dict[str, tuple[Op, int | None, Op]] = {
    "max": (ops.Maximum(), None, ops.LogicalOr()),
    "min": (ops.Minimum(), None, ops.LogicalAnd()),
    "lt": (ops.Less(), 0, ops.LogicalAnd()),
    "le": (ops.LessEqual(), 0, ops.LogicalOr()),
    "gt": (ops.Greater(), 1, ops.LogicalAnd()),
    "ge": (ops.GreaterEqual(), 1, ops.LogicalOr()),
    "lt_to": (ops.Less(), 0, ops.LogicalAnd()),
    "le_to": (ops.LessEqual(), 0, ops.LogicalOr()),
}


def _direct(name: str, op: Op) -> None:
    def apply(call: Equation, *values: Value) -> Result:
        return call.b(op, *values)

    apply.__doc__ = inspect.getdoc(type(op))
    rule(name, broadcasts=True)(apply)


for _name, _op in {**_UNARY, **_BINARY}.items():
    _direct(_name, _op)


def _ordered(name: str, op: Op, negated: int | None, of_bools: Op) -> None:
    def apply(call: Equation, *values: Value) -> Result:
        if values[0].dtype != BOOL:
            return call.b(op, *values)
        return call.b(of_bools, *(call.b(ops.LogicalNot(), v) if i == negated else v for i, v in enumerate(values)))

    apply.__doc__ = inspect.getdoc(type(op))
    rule(name, broadcasts=True)(apply)


for _name, (_op, _negated, _of_bools) in _ORDERED.items():
    _ordered(_name, _op, _negated, _of_bools)


@rule("copy", "copy_p", "device_put", "optimization_barrier", "pvary", broadcasts=True)
def identity(call: Equation, *values: Value) -> Result:
    """Values pass through."""
    return values


@rule("reduce_precision", broadcasts=True)
def reduce_precision(call: Equation, x: Value) -> Result:
    """Rounded to fewer bits; the identity for those of its own type, as half precision is computed in float32."""
    kept = jnp.finfo(call.dtypes[0])
    if call.params["exponent_bits"] >= kept.nexp and call.params["mantissa_bits"] >= kept.nmant:
        return x
    return with_derivative(call, (x,), written_out(call, rounded, (full(call.b, x, call.output),)))


@rule("stop_gradient", broadcasts=True)
def stop_gradient(call: Equation, x: Value) -> Result:
    """The identity: nothing flows back through it."""
    return x if call.constant(x) is not None else without_derivative(call.b, x)


@rule("square", broadcasts=True)
def square(call: Equation, x: Value) -> Result:
    """x * x."""
    return call.b(ops.Mul(), x, x)


@rule("exp2", broadcasts=True)
def exp2(call: Equation, x: Value) -> Result:
    """2^x = e^(x ln 2)."""
    return call.b(ops.Exp(), call.b(ops.Mul(), x, log(2)))


@rule("round", broadcasts=True)
def round_(call: Equation, x: Value) -> Result:
    """To the nearest whole number; halves away from zero, or to the even one."""
    b = call.b
    if int(call.params["rounding_method"]) == 0:
        size = b(ops.Abs(), x)
        below = b(ops.Floor(), size)  # |x| + 0.5 would be rounded itself, just below 0.5 and beyond 2**23
        up = b(ops.Cast(FLOAT32), b(ops.GreaterEqual(), b(ops.Sub(), size, below), 0.5))
        return b(ops.Mul(), b(ops.Sign(), x), b(ops.Add(), below, up))
    return b(ops.Round(), x)


@rule("div", broadcasts=True)
def div(call: Equation, x: Value, y: Value) -> Result:
    """The quotient; of integers truncated, by 0 it is -1."""
    return call.b(ops.Div(), x, y) if x.dtype == FLOAT32 else _whole_quotient(call, x, y)


def _whole_quotient(call: Equation, x: Value, y: Value) -> Value:
    """Where the divisor may be 0 or -1 the kernel, which stops there, gets 1."""
    b, known = call.b, call.constant(y)
    if known is not None and not np.isin(known, (0, -1)).any():
        return b(ops.Div(), x, y)
    none, opposite = b(ops.Equal(), y, 0), b(ops.Equal(), y, -1)
    one = b.constant(np.int32(1))
    quotient = b(ops.Div(), x, b(ops.Select(), b(ops.LogicalOr(), none, opposite), one, y))
    quotient = b(ops.Select(), opposite, b(ops.Sub(), b.constant(np.int32(0)), x), quotient)
    return b(ops.Select(), none, b.constant(np.int32(-1)), quotient)


@rule("rem", broadcasts=True, refuses=[_COMPUTED_RANGE])
def rem(call: Equation, x: Value, y: Value) -> Result:
    """Remainder with the sign of the dividend; of integers by 0 the dividend."""
    b, divisor = call.b, call.constant(y)
    if call.unsigned and (bits := drawn(b, x)) is not None:
        x, divisor = bits, call.known(y, *_COMPUTED_RANGE)
    if call.unsigned and divisor is not None and 0 < divisor.min() <= divisor.max() <= LARGEST_DIVISOR:
        return unsigned_remainder(b, x, divisor)
    x, y = (full(b, v, t) for v, t in zip((x, y), call.inputs, strict=True))
    if call.unsigned:
        return written_out(call, unsigned_rem, (x, y))
    if x.dtype != FLOAT32:
        return b(ops.Sub(), x, b(ops.Mul(), _whole_quotient(call, x, y), y))
    made = b(ops.Mul(), b(ops.Sign(), x), b(ops.FloorMod(), b(ops.Abs(), x), b(ops.Abs(), y)))
    return with_derivative(call, (x, y), (made,))


@rule("is_finite", broadcasts=True)
def is_finite(call: Equation, x: Value) -> Result:
    """x - x is 0 for finite x and NaN else."""
    return call.b(ops.Equal(), call.b(ops.Sub(), x, x), 0.0)


def power(b: Builder, x: Value, exponent: int) -> Value:
    """x^exponent by repeated squaring."""
    if exponent < 0:
        return b(ops.Div(), 1.0, power(b, x, -exponent))
    if exponent == 0:
        return b.broadcast_to(b.constant(np.ones((), x.dtype)), x.shape)
    factors, base = [], x
    while exponent:
        if exponent & 1:
            factors.append(base)
        exponent >>= 1
        base = b(ops.Mul(), base, base) if exponent else base
    return reduce(lambda u, v: b(ops.Mul(), u, v), factors)


@rule("integer_pow", broadcasts=True)
def integer_pow(call: Equation, x: Value) -> Result:
    """x^n for a fixed whole number n."""
    exponent = int(call.params["y"])
    made = power(call.b, x, exponent)
    return with_derivative(call, (x,), (made,)) if exponent < 0 else made  # at 0 the product rule would give NaN


@rule("pow", broadcasts=True)
def pow_(call: Equation, x: Value, y: Value) -> Result:
    """x^y; as products or roots where y is a known small number."""
    b, known = call.b, call.constant(y)
    if y.dtype != x.dtype:
        y = b(ops.Cast(x.dtype), y)
    if known is not None and known.size == 1 and call.constant(x) is None:
        exponent = float(known.item())
        if exponent.is_integer() and abs(exponent) <= 8:
            return power(b, x, int(exponent))
        if abs(exponent) == 0.5:
            return b(ops.Sqrt() if exponent > 0 else ops.Rsqrt(), x)
    return b(ops.Pow(), x, y)


@rule("select_n", broadcasts=True)
def select_n(call: Equation, which: Value, *cases: Value) -> Result:
    """The case whose number `which` holds; a bool chooses between two."""
    b, known = call.b, call.constant(which)
    if known is not None and known.size == 1:
        return cases[int(known.item())]
    if which.dtype == BOOL:
        return b(ops.Select(), which, cases[1], cases[0])
    chosen = cases[0]
    for number, case in enumerate(cases[1:], start=1):
        chosen = b(ops.Select(), b(ops.Equal(), which, number), case, chosen)
    return chosen


@rule("clamp")
def clamp(call: Equation, low: Value, x: Value, high: Value) -> Result:
    """min(max(x, low), high); at the edges nothing flows to x."""
    made = call.b(ops.Minimum(), call.b(ops.Maximum(), x, low), high)
    if any(bound.shape != x.shape and call.constant(bound) is None for bound in (low, high)):
        return made  # a number that is computed bounds an array: there JAX's own derivative fails
    return with_derivative(call, (low, x, high), (made,))


@rule("convert_element_type", broadcasts=True)
def convert_element_type(call: Equation, x: Value) -> Result:
    """Another element type; bool means "not zero"."""
    dtype = call.output.dtype
    if dtype == x.dtype:
        return x
    if dtype == BOOL:
        return call.b(ops.NotEqual(), x, np.zeros((), x.dtype))
    exact = np.dtype(call.params["new_dtype"])
    if x.dtype == FLOAT32 and exact.kind in "iu" and exact.itemsize < 4:
        x = clamped(call.b, x, exact)
    return call.b(ops.Cast(dtype), x)


@rule("polygamma", refuses=[_HIGHER_ORDER])
def polygamma(call: Equation, order: Value, x: Value) -> Result:
    """The derivative of digamma."""
    known = call.constant(order)
    if known is None or not (known == 1).all():
        raise NotImportable(*_HIGHER_ORDER)
    return written_out(call, lambda _, z: trigamma(z), (order, x))
