"""Functional form of graphs of the training IR that hold few operators written in place, as most graphs do.

PyTorch's own functionalization traces a graph again, which takes longer than its export: it is left to graphs in which
operators write into views, inputs or buffers, or are composed of others.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch

#: Composite operators that PyTorch does not keep, as views may come of them, and that have rules.
_OWN = ("batch_norm", "chunk", "contiguous", "flatten", "reshape", "to", "type_as", "unflatten")
#: What checks and says nothing of the result.
_CHECKS = "_assert"
#: Operators that may give a view of an operand without saying so.
_VIEWS = ("einsum",)


def made_functional(program: torch.export.ExportedProgram, known: Collection[str], kept: Collection[str]) -> bool:
    """Return whether a graph is functional, and of operators that are known.

    Args:
        program: operators in place are replaced in it where that changes nothing else.
        known: names of operators that have rules, `linear`, or of one overload, `max.dim`.
        kept: full names of composite operators that decomposition would leave as they are where they are known.
    """
    if program.graph_signature.buffers_to_mutate or program.graph_signature.user_inputs_to_mutate:
        return False
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    done = all(_is_plain(node, known, kept, order) for node in order if node.op not in ("placeholder", "output"))
    program.graph_module.recompile()
    return done


def _is_plain(node: Any, known: Collection[str], kept: Collection[str], order: dict[Any, int]) -> bool:
    """Whether a node is of an operator that is known, in place no more."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.is_mutable and not _out_of_place(node, order):
        return False
    namespace, _, name = node.target._schema.name.partition("::")
    if namespace == "pocketune" or name.startswith(_CHECKS):
        return True
    if name not in known and f"{name}.{node.target._overloadname}" not in known:
        return False
    return not _is_composite(node.target) or node.target.name() in kept or name in _OWN


def _out_of_place(node: Any, order: dict[Any, int]) -> bool:
    """Replace an operator in place by the one that gives a new tensor, where nothing else sees what is written."""
    namespace, _, name = node.target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    target = getattr(packet, node.target._overloadname, None)
    written = node.args[0] if node.args else None
    if not name.endswith("_") or target is None or not isinstance(written, torch.fx.Node) or not _is_fresh(written):
        return False
    if any(aliases(user.target) for user in written.users if order[user] < order[node]):
        return False
    node.target = target
    for user in [u for u in written.users if order[u] > order[node]]:
        user.replace_input_with(written, node)
    return True


def _is_fresh(node: Any) -> bool:
    """Whether the result of a node is a tensor of its own."""
    return node.op == "call_function" and not aliases(node.target)


def aliases(target: Any) -> bool:
    """Return whether an operator may give a view of an operand, or an operand itself."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    name = target._schema.name.partition("::")[2]
    return name in _VIEWS or any(result.alias_info is not None for result in target._schema.returns)


def _is_composite(target: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
