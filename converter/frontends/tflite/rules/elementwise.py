"""Elementwise operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from converter.frontends.tflite.registry import Call, Result, Rules
from converter.frontends.tflite.rules.activations import fused
from converter.ir import BOOL, FLOAT32, INT32, Builder, Graph, Op, Value, ops
from converter.support.errors import NotImportable

rule = Rules()

_BINARY: dict[str, Op] = {
    "ADD": ops.Add(),
    "SUB": ops.Sub(),
    "MUL": ops.Mul(),
    "DIV": ops.Div(),
    "MAXIMUM": ops.Maximum(),
    "MINIMUM": ops.Minimum(),
    "SQUARED_DIFFERENCE": ops.SquaredDifference(),
    "POW": ops.Pow(),
    "EQUAL": ops.Equal(),
    "NOT_EQUAL": ops.NotEqual(),
    "LESS": ops.Less(),
    "LESS_EQUAL": ops.LessEqual(),
    "GREATER": ops.Greater(),
    "GREATER_EQUAL": ops.GreaterEqual(),
    "ATAN2": ops.Atan2(),
    "BITWISE_XOR": ops.BitwiseXor(),
    "LOGICAL_AND": ops.LogicalAnd(),
    "LOGICAL_OR": ops.LogicalOr(),
}
_UNARY: dict[str, Op] = {
    "ABS": ops.Abs(),
    "NEG": ops.Neg(),
    "EXP": ops.Exp(),
    "LOG": ops.Log(),
    "SQRT": ops.Sqrt(),
    "RSQRT": ops.Rsqrt(),
    "SIN": ops.Sin(),
    "COS": ops.Cos(),
    "CEIL": ops.Ceil(),
    "FLOOR": ops.Floor(),
    "ROUND": ops.Round(),
    "SIGN": ops.Sign(),
    "LOGICAL_NOT": ops.LogicalNot(),
}


def _binary(op: Op, call: Call, x: Value, y: Value) -> Result:
    return fused(call, call.b(op, x, y))


def _unary(op: Op, call: Call, x: Value) -> Result:
    return call.b(op, x)


for _kinds, _function in ((_BINARY, _binary), (_UNARY, _unary)):
    for _kind, _op in _kinds.items():
        rule(_kind)(partial(_function, _op))


@rule("SQUARE")
def square(call: Call, x: Value) -> Result:
    """x x."""
    return call.b(ops.Mul(), x, x)


@rule("ADD_N")
def add_n(call: Call, first: Value, *others: Value) -> Result:
    """The sum of all."""
    total = first
    for value in others:
        total = call.b(ops.Add(), total, value)
    return total


@rule("SELECT", "SELECT_V2")
def select(call: Call, condition: Value, x: Value, y: Value) -> Result:
    """x where the condition holds, else y; of SELECT a condition of one axis chooses rows."""
    b = call.b
    if call.operator.kind == "SELECT" and len(condition.shape) == 1 < len(x.shape):
        condition = b.reshape(condition, (*condition.shape, *(1 for _ in x.shape[1:])))
    return b(ops.Select(), condition, x, y)


@rule("FLOOR_DIV")
def floor_div(call: Call, x: Value, y: Value) -> Result:
    """The quotient, rounded down; integers that are known, as sizes are."""
    if x.dtype == FLOAT32:
        return call.b(ops.Floor(), call.b(ops.Div(), x, y))
    numbers = (call.known(v, "numbers") for v in (x, y))
    return call.b.constant(np.floor_divide(*numbers).astype(x.dtype))


@rule("FLOOR_MOD")
def floor_mod(call: Call, x: Value, y: Value) -> Result:
    """What is left of it, of the sign of y."""
    b = call.b
    if x.dtype == FLOAT32:
        return b(ops.Sub(), x, b(ops.Mul(), y, b(ops.Floor(), b(ops.Div(), x, y))))
    return b(ops.FloorMod(), x, y)


@rule("CAST")
def cast(call: Call, x: Value) -> Result:
    """To float32, int32 or bool."""
    wanted = call.types[0].dtype
    kinds: dict[Any, np.dtype] = {"f": FLOAT32, "i": INT32, "u": INT32, "b": BOOL}
    if wanted is None or wanted.kind not in kinds:
        raise NotImportable(f"CAST to {call.types[0].kind}")
    return call.b(ops.Cast(kinds[wanted.kind]), x)


@rule("DENSIFY")
def densify(call: Call, x: Value) -> Result:
    """A constant, which is dense since the file was read."""
    return x


@rule("DEQUANTIZE", "QUANTIZE")
def quantized(call: Call, x: Value) -> Result:
    """The same numbers, which integers or those of half precision stood for, or will."""
    if x.dtype != FLOAT32:
        raise NotImportable(f"{call.operator.kind} of plain integers")
    return x


@rule("FAKE_QUANT")
def fake_quant(call: Call, x: Value) -> Result:
    """Rounded to the integers of so many bits between two ends, which are moved so that zero is one of them.

    The derivative is 1 between the ends and 0 beyond them, as TensorFlow defines it.
    """
    low, high, scale = _nudged(call)
    b = call.b
    inside = b(ops.Maximum(), b(ops.Minimum(), x, high), low)
    steps = b(ops.Mul(), b(ops.Sub(), inside, low), np.float32(1) / scale)
    rounded = b(ops.Add(), b(ops.Mul(), b(ops.Floor(), b(ops.Add(), steps, 0.5)), scale), low)
    backward = Builder(Graph())
    given, cotangent = (backward.input(name, x.type) for name in ("x", "cotangent"))
    passes = backward(
        ops.LogicalAnd(), backward(ops.GreaterEqual(), given, low), backward(ops.LessEqual(), given, high)
    )
    backward.graph.outputs = {"0": backward(ops.Select(), passes, cotangent, backward(ops.Sub(), cotangent, cotangent))}
    (made,) = b.node(ops.CustomGradient(1, 1, backward.graph), x, x, rounded).outputs
    return made


def _nudged(call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both ends and the step between the numbers, in the kernel's float32 arithmetic."""
    low, high = np.float32(call.option("min", 0.0)), np.float32(call.option("max", 0.0))
    bits = call.option("numBits", 0)
    if call.option("narrowRange", False):
        raise NotImportable("FAKE_QUANT of a narrow range, which the stock runtime does not run")
    if not low <= 0 <= high or not low < high or not 2 <= bits <= 16:
        raise NotImportable(f"FAKE_QUANT of {bits} bits from {low:g} to {high:g}")
    last = np.float32(2**bits - 1)
    scale = (high - low) / last
    zero = np.clip(np.floor(-low / scale + np.float32(0.5)), np.float32(0), last)
    return np.asarray(-zero * scale), np.asarray((last - zero) * scale), np.asarray(scale)
