"""Operators in place whose effect a program would lose: on parameters, and on what `detach()` was taken of."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch

from converter.frontends.torch.functional import aliases
from converter.frontends.torch.places import place_of
from converter.support.errors import NotImportable
from jax_frontend.origins import Site
from jax_frontend.unsupported import Problems

_PARAMETER = NotImportable(
    "a parameter that is written into as the module is called",
    "compute with a changed copy, self.weight.clamp(-1, 1); of an embedding leave max_norm out",
)
_DETACHED = NotImportable(
    "a tensor that is written into behind detach(), which changes what it was taken of", "detach().clone() first"
)
_DETACH = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)


def check_writes(program: torch.export.ExportedProgram, problems: Problems) -> None:
    """Add to the problems what a graph of the training IR writes where a program would not read it."""
    parameters = program.graph_signature.inputs_to_parameters
    known = {n for n in program.graph.nodes if n.op == "placeholder" and n.name in parameters}
    _check_graph(program.graph_module, known, problems)


def _check_graph(module: torch.fx.GraphModule, parameters: Set[Any], problems: Problems) -> None:
    order = {node: i for i, node in enumerate(module.graph.nodes)}
    for node in order:
        if node.op != "call_function":
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            _check_region(module, node, parameters, problems)
        elif problem := _lost(node, parameters, order):
            place = place_of(node)
            problems.add(problem, Site(place.layer, place.source, place.function), str(node.target))


def _check_region(module: torch.fx.GraphModule, node: Any, parameters: Set[Any], problems: Problems) -> None:
    """The graph that an operator such as `torch.no_grad` holds, which takes the operands after it."""
    for place, operand in enumerate(node.args):
        inner = getattr(module, str(operand.target), None) if getattr(operand, "op", "") == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            taken = [n for n in inner.graph.nodes if n.op == "placeholder"]
            given = zip(taken, node.args[place + 1 :], strict=False)
            _check_graph(inner, {n for n, v in given if isinstance(v, torch.fx.Node) and v in parameters}, problems)


def _lost(node: Any, parameters: Set[Any], order: Mapping[Any, int]) -> NotImportable | None:
    """What is lost of what an operator does in place; None where nothing is."""
    if not node.target._schema.is_mutable or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    written, detached = node.args[0], None
    while written.op == "call_function" and aliases(written.target) and written.args:
        detached = written if written.target in _DETACH else detached
        if not isinstance(written.args[0], torch.fx.Node):
            return None
        written = written.args[0]
    if written in parameters:
        return _PARAMETER
    if detached is None:
        return None
    is_read = written.op == "placeholder" or any(order[user] > order[node] for user in written.users)
    return _DETACHED if is_read else None
