"""Tracing: a JAX function becomes a Graph of semantic ops."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from converter.ir import Graph, LazyArray, Parameter, TensorType, Value, described, nested, ops, verify
from converter.ir.folding import FoldingBuilder
from converter.support.errors import NotImportable, UsageError
from converter.support.notes import Note
from jax_frontend.cleanup import without_dead_code
from jax_frontend.dtypes import HALVES, ir_type, narrow
from jax_frontend.findings import Findings
from jax_frontend.importer import Importer
from jax_frontend.model import (
    Model,
    argument_names,
    check_finite,
    is_parameter,
    named_leaves,
    output_names,
    own_output_names,
    untrained,
)
from jax_frontend.modules import open_module
from jax_frontend.origins import Site
from jax_frontend.rules.random import RAW_BITS
from jax_frontend.table import RULES
from jax_frontend.unsupported import Problems

#: Of a dict that is not in the order of its keys.
_SORTED = (
    "{} come in a dict, which JAX orders by its keys: so do lists of losses and targets go, and what infer gives. Name "
    "them, loss={{...}}, or return a tuple"
)


def trace(model: Model, batch: int, findings: Findings | None = None) -> Graph:
    """Return the forward graph of a model for one batch size, in the ops that JAX spells it in.

    Inputs are named `x`, or `x_0`, `x_1`, .... Outputs are `output`; of a tuple or list `output_0`, `output_1`, ...; of
    another tree the paths in it, joined with "/" (`boxes`, `heads/class`), in its order.

    `findings` takes what is found about the model beside.

    Raises:
        UnsupportedError: the model uses what cannot be compiled; all sites are listed.
        NumericError: a weight holds NaN.
        UsageError: two parameters have the same path, a constant has no value, or `apply` returns nothing.
        Exception: what `apply` itself raises, with a note that says how it was called.
    """
    findings = Findings() if findings is None else findings
    apply, params = open_module(model.apply, model.params, findings)
    leaves = named_leaves(params)
    treedef = jax.tree_util.tree_structure(params)
    importer = Importer(FoldingBuilder(), RULES, Problems(halves=findings.halves))
    arrays = {name: _narrowed(importer, name, leaf) for name, leaf in leaves.items() if is_parameter(leaf)}
    if unknown := [n for n, leaf in leaves.items() if n not in arrays and isinstance(leaf, jax.ShapeDtypeStruct)]:
        raise UsageError(
            f"{unknown[0]} has no value: what is not of floating point is a constant, give its numbers", page="models"
        )
    check_finite(arrays)
    types = {name: str(getattr(leaves[name], "dtype", "")) for name in arrays}
    importer.problems.halves.update({name: dtype for name, dtype in types.items() if dtype in HALVES})
    fixed = untrained(model, params, list(arrays))

    orders: dict[str, None] = {}

    def call(parameters: dict[str, Any], *inputs: Any) -> Any:
        filled = [parameters.get(name, leaf) for name, leaf in leaves.items()]
        made = apply(jax.tree_util.tree_unflatten(treedef, filled), *inputs)
        if type(made) is dict and list(made) != sorted(made):
            orders[", ".join(map(str, made))] = None
        return made

    given = {
        name: jax.ShapeDtypeStruct(np.shape(leaves[name]), getattr(leaves[name], "dtype", np.float32))
        for name in arrays
    }
    specs = [jax.ShapeDtypeStruct((batch, *spec.shape[1:]), spec.dtype) for spec in model.inputs]
    with _explained(model, specs):
        closed, result = jax.make_jaxpr(call, return_shape=True)(given, *specs)
    findings.notes.extend(Note("outputs", "sorted", _SORTED.format(order)) for order in orders)
    if not closed.out_avals:
        raise UsageError(f"{model.name} returns nothing: apply(params, *inputs) must return its outputs", page="models")
    weights: dict[str, Value] = {}
    for name, array in arrays.items():
        weights[name] = Value(TensorType(array.shape, array.dtype), name)
        source = leaves[name] if isinstance(leaves[name], LazyArray) else None
        parameter = Parameter(name, array, trainable=name not in fixed, source=source)
        importer.b.graph.parameters[weights[name]] = parameter
    names = ["x"] if len(specs) == 1 else [f"x_{i}" for i in range(len(specs))]
    inputs = _inputs(importer, specs, names)
    findings.inputs.update(zip(names, argument_names(model), strict=False))
    findings.outputs.update(own_output_names(result))
    # Trees of dictionaries flatten in the order of their sorted keys.
    return _finish(importer, closed, [*(weights[name] for name in sorted(weights)), *inputs], output_names(result))


def trace_function(
    fn: Callable[..., Any], arguments: Sequence[Any], names: Sequence[str] | None = None, known_keys: bool = False
) -> Graph:
    """Return the graph of any JAX function, without parameters.

    Args:
        fn: the function, called as `fn(*arguments)`.
        arguments: pytrees of TensorType or jax.ShapeDtypeStruct.
        names: one name an argument; a leaf of a tree is called `<name>/<path>`. `x` or `x_0`, `x_1`, ... by default.
        known_keys: whether it may draw random numbers by a constant key, which are the same in each call.

    Returns:
        A graph whose inputs are the leaves of the arguments in order, and whose outputs are the leaves of the result,
        named `output`, or `output_0`, `output_1`, ...

    Raises:
        UnsupportedError: the function uses what cannot be compiled; all sites are listed.
    """
    if names is None:
        names = ["x"] if len(arguments) == 1 else [f"x_{i}" for i in range(len(arguments))]
    importer = Importer(FoldingBuilder(), RULES, Problems(refuses_known_keys=not known_keys))
    specs, labels = [], []
    for name, argument in zip(names, arguments, strict=True):
        tree = jax.tree_util.tree_map(_struct, argument)
        specs.append(tree)
        leaves = named_leaves(tree)
        labels += [name if isinstance(tree, jax.ShapeDtypeStruct) else f"{name}/{path}" for path in leaves]
    closed = jax.make_jaxpr(fn)(*specs)
    inputs = _inputs(importer, jax.tree_util.tree_leaves(specs), labels)
    return _finish(importer, closed, inputs, output_names(closed.out_avals))


def array_types(arguments: Any) -> Any:
    """Arguments of a function, trees of arrays and numbers, as JAX's types for them."""
    return jax.tree_util.tree_map(lambda leaf: _struct(jax.numpy.asarray(leaf)), arguments)


def array_leaves(arguments: Any) -> list[np.ndarray]:
    """Return all arrays in the arguments, in order."""
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(arguments)]


@contextmanager
def _explained(model: Model, specs: Sequence[jax.ShapeDtypeStruct]) -> Iterator[None]:
    """What the user's function raises is theirs; a note says how it was called."""
    try:
        yield
    except Exception as error:
        inputs = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)
        error.add_note(f"Raised by {model.name} when Pocketune traced it as apply(params, {inputs}).")
        for said, spec in zip(model.inputs, specs, strict=True):
            if said.shape[0] not in (1, spec.shape[0]):
                whole = ", ".join(map(str, said.shape))
                error.add_note(
                    f"The first axis of an input is the batch: of ({whole}) the {said.shape[0]} became {spec.shape[0]}."
                    f" If that is one example, write (1, {whole})."
                )
        if fixed := re.search(r"reshape array of shape \(.*into shape \((\d+)", str(error)):
            error.add_note(f"If it is written for {fixed[1]} rows at a time, build with batch={fixed[1]}.")
        raise


def _struct(type: Any) -> jax.ShapeDtypeStruct:
    if not hasattr(type, "shape") or not hasattr(type, "dtype"):
        raise UsageError(f"arguments are described by TensorType or jax.ShapeDtypeStruct, not {type!r}", page="models")
    return jax.ShapeDtypeStruct(type.shape, type.dtype)


def _narrowed(importer: Importer, name: str, leaf: Any) -> np.ndarray:
    """Return the initial value of a parameter; a type without a stand-in goes to the report."""
    try:
        if isinstance(leaf, jax.ShapeDtypeStruct | LazyArray):
            return described(ir_type(leaf).shape, name)
        return np.ascontiguousarray(narrow(leaf)).reshape(np.shape(leaf))
    except NotImportable as problem:
        importer.problems.add(problem, Site(layer=name))
        return np.zeros(np.shape(leaf), np.float32)


def _inputs(importer: Importer, specs: Sequence[Any], names: Sequence[str]) -> list[Value]:
    values = []
    for name, spec in zip(names, specs, strict=True):
        try:
            type, known = ir_type(spec), True
        except NotImportable as problem:
            importer.problems.add(problem, Site(layer=f"input {name}"))
            type, known = TensorType(tuple(spec.shape)), False
        values.append(importer.b.input(name, type))
        if not known:
            importer.give_up(values[-1])
    return values


def _finish(importer: Importer, closed: Any, arguments: Sequence[Value], names: Sequence[str]) -> Graph:
    """Imports the jaxpr and polishes the graph; `names` are those of its outputs."""
    outputs = importer.run(closed, arguments)
    importer.b.graph.outputs = dict(zip(names, outputs, strict=True))
    graph = without_dead_code(importer.b.graph)
    for node in (node for inner in nested(graph) for node in inner.nodes if isinstance(node.op, ops.RandomBits)):
        importer.problems.add(NotImportable(*RAW_BITS), Site(node.origin.layer, node.origin.source), "random_bits")
    importer.problems.check()
    return verify(graph, after="tracing")
