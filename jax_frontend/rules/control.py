"""Control flow: calls, conditionals, loops and derivatives that the user wrote."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from converter.ir import Builder, Graph, TensorType, Value, guarded, ops
from converter.ir.analysis.loop_bounds import most_steps
from converter.ir.folding import FoldingBuilder
from jax_frontend.cleanup import without_dead_code
from jax_frontend.dtypes import ir_type
from jax_frontend.importer import full
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.reduction import folded
from jax_frontend.rules.shape import cut_axis
from jax_frontend.rules.spelled import with_derivative
from jax_frontend.unsupported import Problems

rule = ImportRules()

#: Functions of JAX with a rule of their own that says what differentiating their ops gives.
_PLAIN = ("relu", "relu6", "softmax", "_softmax", "silu")
#: A loop of more steps than this, or whose steps come to more nodes, is not unrolled: each operator takes 3 KiB of the
#: runtime's memory, and the backward pass has two for each. A step of a loop that stays one copies what it hands on.
MOST_UNROLLED = 256


@rule("jit", "pjit", "closed_call", "core_call", "composite", "remat", "remat2", "checkpoint", broadcasts=True)
def nested_call(call: Equation, *values: Value) -> Result:
    """Inlined."""
    jaxpr = call.params.get("jaxpr", call.params.get("call_jaxpr"))
    return call.inline(jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ()), values)


@rule("custom_jvp_call", broadcasts=True)
def custom_jvp_call(call: Equation, *values: Value) -> Result:
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
    upper = b.producer(y, ops.Minimum)
    inner = upper.inputs[0] if upper and b.scalar(upper.inputs[1]) == 6.0 else y
    lower = b.producer(inner, ops.Maximum)
    if lower is None or lower.inputs[0] is not x or b.scalar(lower.inputs[1]) != 0.0:
        return None
    return b(ops.Relu() if inner is y else ops.Relu6(), x)


@rule("custom_vjp_call", "custom_vjp_call_jaxpr")
def custom_vjp_call(call: Equation, *values: Value) -> Result:
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


def _backward(call: Equation, types: list[jax.ShapeDtypeStruct], wanted: list[bool]) -> Graph:
    """The user's bwd as a graph: residuals and cotangents in, one cotangent an argument out, named "0", "1", ..."""
    given: list[str] = []

    def run(*arrays: Any) -> list[Any]:
        cotangents = call.params["bwd"].call_wrapped(*arrays)
        present = [i for i, c in enumerate(cotangents) if wanted[i] and not type(c).__name__.endswith("Zero")]
        given[:] = [str(i) for i in present]
        return [cotangents[i] for i in present]

    closed = jax.make_jaxpr(run)(*types)
    builder = FoldingBuilder()
    importer = call.importer(builder, call.problems, False)
    inputs = [builder.input(f"input_{i}", ir_type(t)) for i, t in enumerate(types)]
    builder.graph.outputs = dict(zip(given, importer.run(closed, inputs, call.site), strict=True))
    return builder.graph


@rule("custom_linear_solve")
def custom_linear_solve(call: Equation, *values: Value) -> Result:
    """By the solver that was given; the derivative is JAX's, which solves again."""
    counts, solve = call.params["const_lengths"], call.params["jaxprs"].solve
    first = counts.matvec + counts.vecmat
    right = values[sum(counts) :]
    made = call.inline_primal(solve, [*values[first : first + counts.solve], *right])
    return with_derivative(call, values, made)


@rule("platform_index")
def platform_index(call: Equation) -> Result:
    """Which of the forms that JAX keeps for different processors is taken: that of the CPU, or the default."""
    kinds = call.params["platforms"]
    chosen = next((i for i, names in enumerate(kinds) if names is None or "cpu" in names), len(kinds) - 1)
    return call.b.constant(np.int32(chosen))


@rule("cond")
def cond(call: Equation, which: Value, *values: Value) -> Result:
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
def scan(call: Equation, *values: Value) -> Result:
    """A loop of any fixed length, with its derivative; unrolled where that is short."""
    p = call.params
    length, carried, first = int(p["length"]), int(p["num_carry"]), int(p["num_consts"])
    if 0 in (length, *(v.type.size for v in values), *(t.size for t in call.outputs)):
        return _unrolled_scan(call, values)
    rows = len(values) - first - carried
    types = [*call.inputs[: first + carried], *(t.with_shape(t.shape[1:]) for t in call.inputs[first + carried :])]
    problems = call.problems.empty()
    body = _graph_of(call, p["jaxpr"], types, values[:first], problems)
    if length * (_count(body) + rows + len(call.outputs) - carried) <= MOST_UNROLLED:
        return _unrolled_scan(call, values)
    if problems:
        _graph_of(call, p["jaxpr"], types, values[:first], call.problems)
    return call.b.node(ops.Scan(body, length, carried, rows, bool(p["reverse"])), *values).outputs


def _count(graph: Graph) -> int:
    """Nodes, with those of loops inside."""
    return sum(1 + sum(map(_count, node.op.bodies())) for node in graph.nodes)


def _graph_of(
    call: Equation,
    closed: Any,
    types: Sequence[TensorType],
    fixed: Sequence[Value],
    problems: Problems,
    read: Sequence[int] | None = None,
) -> Graph:
    """A jaxpr as a graph of its own.

    Args:
        call: the equation that it belongs to.
        closed: the jaxpr.
        types: of the graph's inputs.
        fixed: what the first of these stand for; what of it is known, the graph knows.
        problems: takes what cannot be imported.
        read: which of the inputs the jaxpr takes; all by default.
    """
    builder = FoldingBuilder()
    importer = call.importer(builder, problems, call.is_primal)
    inputs = [builder.input(f"operand_{k}", t) for k, t in enumerate(types)]
    arrays = [call.constant(value) for value in fixed]
    known = [v if a is None else builder.constant(a) for v, a in zip(inputs, arrays, strict=False)]
    inputs = [*known, *inputs[len(known) :]]
    made = importer.run(closed, inputs if read is None else [inputs[k] for k in read], call.site)
    builder.graph.outputs = {f"result_{k}": value for k, value in enumerate(made)}
    return builder.graph if problems else without_dead_code(builder.graph)


def _unrolled_scan(call: Equation, values: Sequence[Value]) -> list[Value]:
    """The steps one after the other."""
    b, p = call.b, call.params
    length, consts, carried = int(p["length"]), int(p["num_consts"]), int(p["num_carry"])
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
    if not length:
        return [*carry, *(b.constant(np.zeros(t.shape, t.dtype)) for t in types)]
    columns = [
        [b.reshape(full(b, v, t.with_shape(t.shape[1:])), (1, *t.shape[1:])) for v in column]
        for column, t in zip(zip(*stacked, strict=True), types, strict=True)
    ]
    return [*carry, *(c[0] if len(c) == 1 else b(ops.Concat(0), *c) for c in columns)]


@rule("while")
def while_(call: Equation, *values: Value) -> Result:
    """A loop that ends by its data. Unrolled where the steps are known and few.

    A derivative flows through it where its condition bounds a counter.
    """
    p = call.params
    tested, first = int(p["cond_nconsts"]), int(p["cond_nconsts"]) + int(p["body_nconsts"])
    by_rows = bool(p["cond_jaxpr"].out_avals[0].shape)
    unrolled = None if by_rows else _unrolled_while(call, values[:tested], values[tested:first], values[first:])
    if unrolled is not None:
        return unrolled
    everything = range(len(values))
    parts = (p["cond_jaxpr"], [*everything[:tested], *everything[first:]]), (p["body_jaxpr"], everything[tested:])
    condition, body = (
        _graph_of(call, closed, call.inputs, values[:first], call.problems, read) for closed, read in parts
    )
    most = most_steps(condition, body, [call.constant(value) for value in values])
    if by_rows:
        condition, body = _while_any(condition), guarded(condition, body)
    return call.b.node(ops.While(condition, body, most), *values).outputs


def _while_any(condition: Graph) -> Graph:
    """Of a condition for each row, which jax.vmap makes: whether one of them holds."""
    b = FoldingBuilder(condition.copy())
    ((name, rows),) = condition.outputs.items()
    b.graph.outputs[name] = folded(b, rows, tuple(range(len(rows.shape))), ops.LogicalOr())
    return b.graph


def _unrolled_while(
    call: Equation, of_test: Sequence[Value], of_body: Sequence[Value], carry: Sequence[Value]
) -> Sequence[Value] | None:
    """The steps one after the other; None where they are many, or where it is not known how many they are."""
    p, nodes = call.params, call.b.graph.nodes
    begin = len(nodes)
    for _ in range(MOST_UNROLLED):
        (going,) = call.inline(p["cond_jaxpr"], [*of_test, *carry])
        known = call.constant(going)
        if known is None:
            return None
        if not known.item():
            return carry
        if len(nodes) - begin > MOST_UNROLLED:
            return None
        carry = call.inline(p["body_jaxpr"], [*of_body, *carry])
    return None
