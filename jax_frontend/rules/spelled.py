"""Primitives spelled out: a formula of other primitives for the value, JAX's own rule for the derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax

from converter.ir import Builder, Graph, Value, ops
from converter.ir.folding import FoldingBuilder
from jax_frontend.dtypes import ir_type
from jax_frontend.importer import full
from jax_frontend.registry import Equation, ImportRules, Result

#: A JAX function of arrays, with the equation's parameters as keywords.
Formula = Callable[..., Any]


def spelled(rule: ImportRules, *primitives: str) -> Callable[[Formula], Formula]:
    """Add a formula to a table as the import rule of primitives; the derivative is the primitives' own."""

    def register(formula: Formula) -> Formula:
        @rule(*primitives)
        @wraps(formula)
        def apply(call: Equation, *values: Value) -> Result:
            return with_derivative(call, values, written_out(call, formula, values))

        return formula

    return register


def written_out(call: Equation, formula: Formula, values: Sequence[Value]) -> list[Value]:
    """The formula in place of the equation."""
    closed = jax.make_jaxpr(lambda *arrays: formula(*arrays, **call.params))(*structs(values))
    return call.inline_primal(closed, values)


def structs(values: Sequence[Value]) -> list[jax.ShapeDtypeStruct]:
    """Types for tracing."""
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]


def with_derivative(call: Equation, values: Sequence[Value], outputs: Sequence[Value]) -> Sequence[Value]:
    """`outputs`, the equation's results, with JAX's derivative of the equation by the operands `values`.

    Where that needs a primitive without a rule, the derivative is that of how the outputs were made.
    """
    floats = [i for i, v in enumerate(values) if v.dtype.kind == "f" and call.constant(v) is None]
    if call.is_primal or not floats or not any(t.dtype.kind == "f" for t in call.outputs):
        return outputs
    values = [full(call.b, v, t) for v, t in zip(values, call.inputs, strict=True)]
    backward = _backward(call, floats)
    if backward is None:
        return outputs
    op = ops.CustomGradient(len(values), len(values), backward)
    return call.b.node(op, *values, *values, *outputs).outputs


def _backward(call: Equation, floats: Sequence[int]) -> Graph | None:
    """The operands and a cotangent for each output in; a cotangent for each operand of `floats` out, by its number."""
    results = [i for i, t in enumerate(call.outputs) if t.dtype.kind == "f"]

    def run(*arrays: Any) -> Any:
        operands, cotangents = list(arrays[: len(call.inputs)]), arrays[len(call.inputs) :]

        def of_floats(*given: Any) -> list[Any]:
            for i, array in zip(floats, given, strict=True):
                operands[i] = array
            made = call.apply(*operands)
            return [made[i] for i in results]

        pull_back = jax.vjp(of_floats, *(operands[i] for i in floats))[1]
        return pull_back([cotangents[i] for i in results])

    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (*call.inputs, *call.outputs)]
    closed = jax.make_jaxpr(run)(*types)
    builder, problems = FoldingBuilder(), call.problems.empty()
    importer = call.importer(builder, problems, True)
    inputs = [builder.input(f"input_{i}", ir_type(t)) for i, t in enumerate(types)]
    outputs = importer.run(closed, inputs, call.site)
    if problems:
        return None
    builder.graph.outputs = {str(i): v for i, v in zip(floats, outputs, strict=True)}
    return builder.graph


def without_derivative(b: Builder, x: Value) -> Value:
    """The identity with an empty backward graph."""
    return x if x.dtype.kind != "f" else b(ops.CustomGradient(arguments=0, residuals=0, backward=Graph()), x)
