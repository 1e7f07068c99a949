"""Calls, conditionals, loops and derivatives that the person wrote."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from converter.ir import Builder, Graph, Value, ops
from jax_frontend.dtypes import ir_type
from jax_frontend.folding import FoldingBuilder
from jax_frontend.importer import Importer, full
from jax_frontend.registry import Call, NotImportable, Result, rule
from jax_frontend.rules.shape import cut_axis
from jax_frontend.rules.spelled import with_derivative

#: Functions of JAX with a rule of their own that says what differentiating their ops gives.
_PLAIN = ("relu", "relu6", "softmax", "_softmax", "silu")
#: A loop of more steps than this whose end is known is not unrolled.
LONGEST_WHILE = 256
#: A scan of more steps than this is not unrolled.
LONGEST_SCAN = 64


@rule("jit", "pjit", "closed_call", "core_call", "composite", "remat", "remat2", "checkpoint", broadcasts=True)
def nested_call(call: Call, *values: Value) -> Result:
    """Inlined."""
    jaxpr = call.params.get("jaxpr", call.params.get("call_jaxpr"))
    return call.inline(jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ()), values)


@rule("custom_jvp_call", broadcasts=True)
def custom_jvp_call(call: Call, *values: Value) -> Result:
    """The primal function with the derivative that was given for it.

    Functions of JAX whose derivative the ops' own comes to are taken as they are; relu and relu6 as the ops whose
    derivative at the corner is JAX's.
    """
    closed = call.params["call_jaxpr"]
    if _is_plain(closed):
        outputs = call.inline(closed, values)
        return [_activation(call.b, v, values[0]) or v for v in outputs]
    values = tuple(full(call.b, v, t) for v, t in zip(values, call.inputs, strict=True))
    made = [full(call.b, v, t) for v, t in zip(call.inline_primal(closed, values), call.outputs, strict=True)]
    return with_derivative(call, values, made)


def _is_plain(closed: Any) -> bool:
    """Whether the function is one of JAX's own in `_PLAIN`."""
    name, _, file = str(closed.jaxpr.debug_info.func_src_info).partition(" at ")
    return name in _PLAIN and f"{os.sep}jax{os.sep}_src{os.sep}" in file


def _activation(b: Builder, y: Value, x: Value) -> Value | None:
    """Relu or Relu6 of x if that is how y was just made."""
    assert isinstance(b, FoldingBuilder)
    upper = b.source(y, ops.Minimum)
    inner = upper.inputs[0] if upper and b.is_number(upper.inputs[1], 6.0) else y
    lower = b.source(inner, ops.Maximum)
    if lower is None or lower.inputs[0] is not x or not b.is_number(lower.inputs[1], 0.0):
        return None
    return b(ops.Relu() if inner is y else ops.Relu6(), x)


@rule("custom_vjp_call", "custom_vjp_call_jaxpr")
def custom_vjp_call(call: Call, *values: Value) -> Result:
    """The traced fwd in place, and the traced bwd as the derivative of its outputs.

    Inside a fwd, which often calls the function itself, the plain function will do.
    """
    p = call.params
    if call.is_primal:
        return call.inline(p["call_jaxpr"], values)
    arguments = values[p["num_consts"] :]
    wanted = [v.dtype.kind == "f" for v in arguments]
    forward = ClosedJaxpr(*p["fwd_jaxpr_thunk"].call_wrapped(*wanted))
    made = [
        full(call.b, v, ir_type(t))
        for v, t in zip(call.inline_primal(forward, arguments), forward.out_avals, strict=True)
    ]
    outputs = made[len(made) - len(call.outputs) :]
    _, tree, forwarded = p["out_trees"]()
    # Residuals that are arguments of the function itself are not among the outputs of fwd.
    fresh = iter(zip(made, forward.out_avals, strict=True))
    residuals = [next(fresh)[0] if i is None else values[i] for i in forwarded]
    assert len(residuals) == tree.num_leaves
    types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (*residuals, *outputs)]
    backward = _backward(call, types, wanted)
    op = ops.CustomGradient(len(arguments), len(residuals), backward)
    return call.b.node(op, *arguments, *residuals, *outputs).outputs


def _backward(call: Call, types: list[jax.ShapeDtypeStruct], wanted: list[bool]) -> Graph:
    """The person's bwd as a graph: residuals and cotangents in, one cotangent an argument out, named "0", "1", ..."""
    given: list[str] = []

    def run(*arrays: Any) -> list[Any]:
        cotangents = call.params["bwd"].call_wrapped(*arrays)
        present = [i for i, c in enumerate(cotangents) if wanted[i] and not type(c).__name__.endswith("Zero")]
        given[:] = [str(i) for i in present]
        return [cotangents[i] for i in present]

    closed = jax.make_jaxpr(run)(*types)
    builder = FoldingBuilder()
    importer = Importer(builder, call.problems)
    inputs = [builder.input(f"input_{i}", ir_type(t)) for i, t in enumerate(types)]
    builder.graph.outputs = dict(zip(given, importer.run(closed, inputs, call.site), strict=True))
    return builder.graph


@rule("platform_index")
def platform_index(call: Call) -> Result:
    """Which of the forms that JAX keeps for different processors is taken: that of the CPU, or the default."""
    kinds = call.params["platforms"]
    chosen = next((i for i, names in enumerate(kinds) if names is None or "cpu" in names), len(kinds) - 1)
    return call.b.constant(np.int32(chosen))


@rule("cond")
def cond(call: Call, which: Value, *values: Value) -> Result:
    """A known branch alone; otherwise all branches are computed and the result is selected."""
    b, branches = call.b, call.params["branches"]
    known = call.constant(which)
    if known is not None:
        return call.inline(branches[min(max(int(known), 0), len(branches) - 1)], values)
    results = [call.inline(branch, values) for branch in branches]
    chosen = results[-1]  # the index is clamped: anything past the others means the last one
    for number in reversed(range(len(branches) - 1)):
        here = b(ops.NotEqual(), which, 0) if len(branches) == 2 else b(ops.LessEqual(), which, number)
        pairs = zip(results[number], chosen, strict=True)
        first = len(branches) == 2
        chosen = [v if v is u else b(ops.Select(), here, *((v, u) if first else (u, v))) for u, v in pairs]
    return chosen


@rule("scan")
def scan(call: Call, *values: Value) -> Result:
    """A short loop of fixed length, unrolled."""
    b, p = call.b, call.params
    length, consts, carried = int(p["length"]), int(p["num_consts"]), int(p["num_carry"])
    if length > LONGEST_SCAN:
        raise NotImportable(
            f"scan of more than {LONGEST_SCAN} steps", "use fewer steps, or write the loop as one array operation"
        )
    fixed, carry, rows = values[:consts], list(values[consts : consts + carried]), values[consts + carried :]
    stacked: list[list[Value]] = []
    for step in reversed(range(length)) if p["reverse"] else range(length):
        slices = [b.reshape(cut_axis(b, x, 0, step, 1), x.shape[1:]) for x in rows]
        outputs = call.inline(p["jaxpr"], [*fixed, *carry, *slices])
        carry = outputs[:carried]
        stacked.append(outputs[carried:])
    if p["reverse"]:
        stacked.reverse()
    types = call.outputs[carried:]
    columns = [
        [b.reshape(full(b, v, t.with_shape(t.shape[1:])), (1, *t.shape[1:])) for v in column]
        for column, t in zip(zip(*stacked, strict=True), types, strict=True)
    ]
    return [*carry, *(c[0] if len(c) == 1 else b(ops.Concat(0), *c) for c in columns)]


@rule("while")
def while_(call: Call, *values: Value) -> Result:
    """A loop whose condition follows from what is known when compiling (a counter), unrolled."""
    p = call.params
    split = int(p["cond_nconsts"]), int(p["cond_nconsts"]) + int(p["body_nconsts"])
    of_test, of_body, carry = values[: split[0]], values[split[0] : split[1]], list(values[split[1] :])
    for _ in range(LONGEST_WHILE):
        (going,) = call.inline(p["cond_jaxpr"], [*of_test, *carry])
        if not call.known(going, "while").item():
            return carry
        carry = call.inline(p["body_jaxpr"], [*of_body, *carry])
    raise NotImportable(f"while of more than {LONGEST_WHILE} steps", "use fewer steps, or an array operation")
