"""Exported graph -> JAX: walks the nodes in order and calls the rule of each; PyTorch computes constants."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from converter.frontends.torch.findings import Findings
from converter.frontends.torch.places import Place, place_of
from converter.frontends.torch.registry import EXPORT_IN_EVAL, Call, NotImportable
from converter.frontends.torch.rules import (
    activations,
    attention,
    convolution,
    elementwise,
    indexing,
    linear,
    losses,
    normalization,
    pooling,
    recurrent,
    reductions,
    shapes,
)
from converter.frontends.torch.sizes import Sizes
from converter.frontends.torch.tensors import check_range, said_of_types, to_numpy, type_of
from converter.support.registry import collect
from jax_frontend.origins import Site, source_scope
from jax_frontend.unsupported import Problems

RULES = collect(
    *(activations.rule, attention.rule, convolution.rule, elementwise.rule, indexing.rule, linear.rule),
    *(losses.rule, normalization.rule, pooling.rule, recurrent.rule, reductions.rule, shapes.rule),
)

_RANDOM = "random numbers"
_NO_RANDOM = (
    "use nn.Dropout, which acts in a step by dropout='train', or F.dropout(x, p, training=self.training); or pass the "
    "random numbers in as an input"
)
_ADVICE = "compute it outside of the module and pass the result as an input, or write it with other operators"
#: Arithmetic on sizes, which an export computes by functions of Python.
_OF_NUMBERS = (bool, int, float)
#: What checks and says nothing of the result.
_CHECKS = ("_assert", "sym_constrain", "_print")


class Interpreter:
    """Computes one exported graph with JAX.

    Args:
        program: the graph, of operators that have rules.
        findings: takes what is found beside.

    Attributes:
        problems: what could not be computed; something of the right type stands in its place.
    """

    def __init__(self, program: torch.export.ExportedProgram, findings: Findings) -> None:
        self.problems = Problems()
        self._program, self._findings = program, findings
        signature = program.graph_signature
        self._targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self._doubtful: set[Any] = set()
        self._sizes = Sizes()

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the graph, for the values of its placeholders by name."""
        values: dict[Any, Any] = {}
        self.problems = Problems()
        self._doubtful.clear()
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                values[node] = inputs[node.name] if node.name in inputs else node.meta.get("val")
            elif node.op == "call_function":
                values[node] = self._node(node, values)
            elif node.op == "output":
                return list(_taken(node.args[0], values))
        raise AssertionError("an exported graph has an output")

    def _random(self, name: str) -> NotImportable:
        """What to say of an operator that draws random numbers."""
        if "dropout" in name and not self._findings.modes.known:
            return NotImportable("dropout of a module that was exported in train()", EXPORT_IN_EVAL)
        return NotImportable(_RANDOM, _NO_RANDOM)

    def _node(self, node: Any, values: Mapping[Any, Any]) -> Any:
        name = _operator(node)
        if name.startswith(_CHECKS):
            return None
        place = place_of(node)
        try:
            with source_scope(place.layer, place.source, place.function):
                return self._computed(node, name, place, values)
        except NotImportable as problem:
            if self._doubtful.isdisjoint(node.all_input_nodes):
                advised = NotImportable(problem.what, problem.advice or _ADVICE)
                self.problems.add(advised, Site(place.layer, place.source, place.function), name)
            self._doubtful.add(node)
            return _stand_in(node.meta.get("val"))

    def _computed(self, node: Any, name: str, place: Place, values: Mapping[Any, Any]) -> Any:
        # Its operands are graphs, which have no values.
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise _control_flow(node)
        operands, options = _taken(node.args, values), _taken(node.kwargs, values)
        if node.target is operator.getitem:
            return operands[0][operands[1]]
        if not isinstance(node.target, torch._ops.OpOverload):
            if all(isinstance(v, _OF_NUMBERS) for v in (*operands, *options.values())):
                return node.target(*operands, **options)
            raise _control_flow(node)
        if name == "sym_size":
            return int(operands[0].shape[operands[1]])
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _draws_nothing(node):
            raise self._random(name)
        for operand in node.all_input_nodes:
            if values[operand] is None and isinstance(operand.meta.get("val"), torch.Tensor):
                raise NotImportable(f"what {_operator(operand.all_input_nodes[0])} gives beside its first result")
        known = all(isinstance(v, torch.Tensor) for v in _tensors((operands, options)))
        if known and not name.startswith("pocketune."):
            return self._sizes.learned(node, node.target(*operands, **options))
        self._sizes.settle(node)
        rule = RULES.get(f"{name}.{node.target._overloadname}", RULES.get(name))
        if rule is None:
            raise NotImportable(f"the operator {node.target}")
        value = node.meta.get("val")
        first = value[0] if isinstance(value, list | tuple) and value else value
        dtype = np.dtype(np.float32)
        if isinstance(first, torch.Tensor):
            dtype = type_of(first.dtype)
            check_range(node, name, first.dtype)
            if said := said_of_types(node, name, first.dtype):
                self._findings.note(place.layer, "in float32" if first.is_floating_point() else "in int32", said)
        call = Call(node, place.layer, self._targets, self._findings, dtype)
        try:
            made = rule(call, *_arrays(operands), **_arrays(options))
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, NotImplementedError) as error:
            raise NotImportable(f"this form of {node.target} ({str(error).splitlines()[0][:160]})") from error
        return _checked(node, self._sizes.learned(node, made), node.meta.get("val"))


def _control_flow(node: Any) -> NotImportable:
    return NotImportable(f"control flow ({getattr(node.target, '__name__', node.target)})", "use torch.where")


def _operator(node: Any) -> str:
    """The name of an operator: `add` of ATen, `pocketune.dropout`."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__name__", str(node.target))
    namespace, _, name = node.target._schema.name.partition("::")
    return name if namespace == "aten" else f"{namespace}.{name}"


def _draws_nothing(node: Any) -> bool:
    """Whether an operator that may draw random numbers draws none in this form."""
    arguments = node.target._schema.arguments
    names = [argument.name for argument in arguments]
    usual = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given = {**usual, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    rates = [given.get(n, 0.0) for n in ("dropout_p", "p", "dropout") if n in names]
    return (bool(rates) and not any(rates)) or given.get("train") is False or given.get("training") is False


def _taken(arguments: Any, values: Mapping[Any, Any]) -> Any:
    return torch.fx.node.map_arg(arguments, lambda n: values[n])


def _tensors(tree: Any) -> list[Any]:
    """All arrays and tensors in the operands of a node."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [v for part in tree for v in _tensors(part)]
    return [tree] if hasattr(tree, "shape") else []


def _arrays(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return to_numpy(tree)
    if isinstance(tree, Mapping):
        return {k: _arrays(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_arrays(v) for v in tree]
    return tree


def _checked(node: Any, made: Any, value: Any) -> Any:
    """What a rule made, in the types of the results, whose shapes it must have."""
    if isinstance(value, list | tuple):
        parts = list(made) if isinstance(made, list | tuple) else [made]
        parts += [None] * (len(value) - len(parts))
        return [p if p is None or v is None else _checked(node, p, v) for p, v in zip(parts, value, strict=True)]
    if isinstance(made, tuple):
        made = made[0]
    shape = tuple(int(d) for d in value.shape)
    if tuple(jnp.shape(made)) != shape:
        raise NotImportable(f"this form of {node.target} (it gives {list(shape)}, not {list(jnp.shape(made))})")
    dtype = type_of(value.dtype)
    made = made if made.dtype == dtype else made.astype(dtype)
    return torch.from_numpy(np.array(made)) if isinstance(made, np.ndarray | np.generic) else made


def _stand_in(value: Any) -> Any:
    """Zeros of the type of a result, so that what follows can be looked at."""
    if isinstance(value, Sequence):
        return [_stand_in(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return 1 if isinstance(value, torch.SymInt) else value
    shape = [1 if isinstance(d, torch.SymInt) else d for d in value.shape]
    return jnp.zeros(shape, np.float32 if value.is_complex() else type_of(value.dtype))
