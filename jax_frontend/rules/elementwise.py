"""Rules for elementwise primitives. Operands may be smaller than JAX says: the IR's ops broadcast."""

from __future__ import annotations

from functools import reduce
from math import log

import numpy as np

from converter.ir import BOOL, Builder, Graph, Op, Value, ops
from jax_frontend.registry import Call, NotImportable, Result, rule

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
    "erf": ops.Erf(),
}
_BINARY: dict[str, Op] = {
    "add": ops.Add(),
    "add_any": ops.Add(),
    "sub": ops.Sub(),
    "mul": ops.Mul(),
    "div": ops.Div(),
    "max": ops.Maximum(),
    "min": ops.Minimum(),
    "eq": ops.Equal(),
    "ne": ops.NotEqual(),
    "lt": ops.Less(),
    "le": ops.LessEqual(),
    "gt": ops.Greater(),
    "ge": ops.GreaterEqual(),
}
_LOGICAL: dict[str, Op] = {
    "and": ops.LogicalAnd(),
    "or": ops.LogicalOr(),
    "xor": ops.NotEqual(),
    "not": ops.LogicalNot(),
}


def _direct(name: str, op: Op) -> None:
    @rule(name, broadcasts=True)
    def apply(call: Call, *values: Value) -> Result:
        return call.b(op, *values)


for _name, _op in {**_UNARY, **_BINARY}.items():
    _direct(_name, _op)


def _logical(name: str, op: Op) -> None:
    @rule(name, broadcasts=True)
    def apply(call: Call, *values: Value) -> Result:
        if call.output.dtype != BOOL:
            raise NotImportable("bitwise arithmetic on integers", "use bools, or arithmetic")
        return call.b(op, *values)


for _name, _op in _LOGICAL.items():
    _logical(_name, _op)


@rule("copy", "copy_p", "optimization_barrier", "name", "pvary", broadcasts=True)
def identity(call: Call, *values: Value) -> Result:
    """Values pass through."""
    return values


@rule("reduce_precision", broadcasts=True)
def reduce_precision(call: Call, x: Value) -> Result:
    """The identity for at least float32's own precision; a narrower one is computed more precisely."""
    return x


@rule("stop_gradient", broadcasts=True)
def stop_gradient(call: Call, x: Value) -> Result:
    """The identity with an empty backward graph: nothing flows through it."""
    if call.constant(x) is not None or x.dtype.kind != "f":
        return x
    return call.b(ops.CustomGradient(arguments=0, residuals=0, backward=Graph()), x)


@rule("square", broadcasts=True)
def square(call: Call, x: Value) -> Result:
    """x * x."""
    return call.b(ops.Mul(), x, x)


@rule("exp2", broadcasts=True)
def exp2(call: Call, x: Value) -> Result:
    """2^x = e^(x ln 2)."""
    return call.b(ops.Exp(), call.b(ops.Mul(), x, log(2)))


@rule("log1p", broadcasts=True)
def log1p(call: Call, x: Value) -> Result:
    """log(1 + x), to float32's absolute precision."""
    return call.b(ops.Log(), call.b(ops.Add(), x, 1.0))


@rule("expm1", broadcasts=True)
def expm1(call: Call, x: Value) -> Result:
    """e^x - 1 = tanh(x/2) (e^x + 1): exact for small x, where the difference would cancel."""
    b = call.b
    return b(ops.Mul(), b(ops.Tanh(), b(ops.Mul(), x, 0.5)), b(ops.Add(), b(ops.Exp(), x), 1.0))


@rule("erfc", broadcasts=True)
def erfc(call: Call, x: Value) -> Result:
    """1 - erf(x)."""
    return call.b(ops.Sub(), 1.0, call.b(ops.Erf(), x))


@rule("tan", broadcasts=True)
def tan(call: Call, x: Value) -> Result:
    """sin / cos."""
    return call.b(ops.Div(), call.b(ops.Sin(), x), call.b(ops.Cos(), x))


@rule("sinh", broadcasts=True)
def sinh(call: Call, x: Value) -> Result:
    """(e^x - e^-x) / 2."""
    b = call.b
    return b(ops.Mul(), b(ops.Sub(), b(ops.Exp(), x), b(ops.Exp(), b(ops.Neg(), x))), 0.5)


@rule("cosh", broadcasts=True)
def cosh(call: Call, x: Value) -> Result:
    """(e^x + e^-x) / 2."""
    b = call.b
    return b(ops.Mul(), b(ops.Add(), b(ops.Exp(), x), b(ops.Exp(), b(ops.Neg(), x))), 0.5)


@rule("ceil", broadcasts=True)
def ceil(call: Call, x: Value) -> Result:
    """-floor(-x)."""
    b = call.b
    return b(ops.Neg(), b(ops.Floor(), b(ops.Neg(), x)))


@rule("round", broadcasts=True)
def round_(call: Call, x: Value) -> Result:
    """To the nearest whole number; halves away from zero, or to the even one."""
    b = call.b
    if int(call.params["rounding_method"]) == 0:
        return b(ops.Mul(), b(ops.Sign(), x), b(ops.Floor(), b(ops.Add(), b(ops.Abs(), x), 0.5)))
    return b(ops.Round(), x)


@rule("rem", broadcasts=True)
def rem(call: Call, x: Value, y: Value) -> Result:
    """Remainder with the sign of the dividend."""
    b = call.b
    return b(ops.Mul(), b(ops.Sign(), x), b(ops.FloorMod(), b(ops.Abs(), x), b(ops.Abs(), y)))


@rule("is_finite", broadcasts=True)
def is_finite(call: Call, x: Value) -> Result:
    """x - x is 0 for finite x and NaN else."""
    return call.b(ops.Equal(), call.b(ops.Sub(), x, x), 0.0)


def power(b: Builder, x: Value, exponent: int) -> Value:
    """x^exponent by repeated squaring."""
    if exponent < 0:
        return b(ops.Div(), 1.0, power(b, x, -exponent))
    if exponent == 0:
        return b(ops.Add(), b(ops.Mul(), x, 0.0), 1.0)
    factors, base = [], x
    while exponent:
        if exponent & 1:
            factors.append(base)
        exponent >>= 1
        base = b(ops.Mul(), base, base) if exponent else base
    return reduce(lambda u, v: b(ops.Mul(), u, v), factors)


@rule("integer_pow", broadcasts=True)
def integer_pow(call: Call, x: Value) -> Result:
    """x^n for a fixed whole number n."""
    return power(call.b, x, int(call.params["y"]))


@rule("pow", broadcasts=True)
def pow_(call: Call, x: Value, y: Value) -> Result:
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
def select_n(call: Call, which: Value, *cases: Value) -> Result:
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


@rule("clamp", broadcasts=True)
def clamp(call: Call, low: Value, x: Value, high: Value) -> Result:
    """min(max(x, low), high)."""
    return call.b(ops.Minimum(), call.b(ops.Maximum(), x, low), high)


@rule("convert_element_type", broadcasts=True)
def convert_element_type(call: Call, x: Value) -> Result:
    """Another element type; bool means "not zero"."""
    dtype = call.output.dtype
    if dtype == x.dtype:
        return x
    if dtype == BOOL:
        return call.b(ops.NotEqual(), x, np.zeros((), x.dtype))
    return call.b(ops.Cast(dtype), x)
