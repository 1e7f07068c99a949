"""Operators that mark places in an exported graph: what acts in training alone, where gradients end, softshrink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


@torch.library.custom_op("pocketune::dropout", mutates_args=())
def dropout(x: torch.Tensor, p: float, shared: Sequence[int]) -> torch.Tensor:
    """Return x; in a training step elements are dropped with probability p, along the shared axes together."""
    return x.clone()


@torch.library.custom_op("pocketune::stop_gradient", mutates_args=())
def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return x, after which no gradient goes on."""
    return x.clone()


@torch.library.custom_op("pocketune::softshrink", mutates_args=())
def softshrink(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return what lies beyond the limits, less these; what it is decomposed to multiplies by 0 between them."""
    return torch.nn.functional.softshrink(x, limit)


@dropout.register_fake
def _(x: torch.Tensor, p: float, shared: Sequence[int]) -> torch.Tensor:
    return torch.empty_like(x)


@stop_gradient.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@softshrink.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


_DROPOUT = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default)
_FEATURE_DROPOUT = (torch.ops.aten.feature_dropout.default, torch.ops.aten.feature_dropout_.default)


def mark(program: torch.export.ExportedProgram) -> None:
    """Put the markers into a graph of the training IR, which decomposition would leave without a trace.

    Args:
        program: is changed in place.
    """
    _mark_graph(program.graph_module)


def _mark_graph(module: torch.fx.GraphModule) -> None:
    aten = torch.ops.aten
    for node in list(module.graph.nodes):
        target = node.target
        if target in (*_DROPOUT, *_FEATURE_DROPOUT) and node.args[2]:
            continue  # it acts in inference, too: random numbers, which are refused
        if target in _DROPOUT:
            _drop(node, [])
        elif target in _FEATURE_DROPOUT:
            _drop(node, list(range(2, node.args[0].meta["val"].dim())))
        elif target is aten.softshrink.default:
            limit = node.args[1] if len(node.args) > 1 else node.kwargs.get("lambd", 0.5)
            _replace(node, torch.ops.pocketune.softshrink.default, (node.args[0], float(limit)))
        elif target in (aten.detach.default, aten.detach_.default):
            _replace(node, torch.ops.pocketune.stop_gradient.default, (node.args[0],))
        elif getattr(target, "__name__", "") == "wrap_with_set_grad_enabled":
            _inner(module, node)
            if not node.args[0]:
                _stop_after(module.graph, node)
        elif getattr(target, "__name__", "") == "wrap_with_autocast":
            _inner(module, node)
    module.recompile()


def _inner(module: torch.fx.GraphModule, node: Any) -> None:
    for operand in node.args:
        if getattr(operand, "op", "") == "get_attr":
            _mark_graph(getattr(module, operand.target))


def _drop(node: Any, shared: list[int]) -> None:
    x, rate = node.args[0], float(node.args[1])
    _replace(node, torch.ops.pocketune.dropout.default, (x, rate, shared))


def _replace(node: Any, target: Any, args: tuple[Any, ...]) -> None:
    """Give a node another operator; where the old one wrote in place, what reads its operand later reads the result."""
    in_place = node.target._schema.is_mutable
    node.target, node.args, node.kwargs = target, args, {}
    if in_place:
        order = {n: i for i, n in enumerate(node.graph.nodes)}
        for user in [u for u in args[0].users if order[u] > order[node]]:
            user.replace_input_with(args[0], node)


def _stop_after(graph: Any, node: Any) -> None:
    """Let no gradient into a region under `torch.no_grad`."""
    for part in [user for user in node.users if user.op == "call_function"]:
        if not isinstance(part.meta.get("val"), torch.Tensor):
            continue
        with graph.inserting_after(part):
            stopped = graph.call_function(torch.ops.pocketune.stop_gradient.default, (part,))
        stopped.meta = dict(part.meta)
        part.replace_all_uses_with(stopped, delete_user_cb=lambda user, kept=stopped: user is not kept)


# -- layers that are known by what they are called ---------------------------------------------------------------------


@contextmanager
def stochastic_depth_marked(module: torch.nn.Module) -> Iterator[None]:
    """While it lasts, layers of stochastic depth, of timm, torchvision and transformers, mark what they drop."""
    changed = []
    for layer in module.modules():
        forward = _stochastic_depth(layer)
        if forward is not None and "forward" not in vars(layer):
            object.__setattr__(layer, "forward", forward)
            changed.append(layer)
    try:
        yield
    finally:
        for layer in changed:
            object.__delattr__(layer, "forward")


def _stochastic_depth(layer: Any) -> Callable[..., Any] | None:
    """What such a layer does in its place; None for any other layer."""
    name = type(layer).__name__
    rate: Any = getattr(layer, "drop_prob", None) if name.endswith("DropPath") else None
    first = 1
    if name == "StochasticDepth":
        rate, first = getattr(layer, "p", None), 0 if getattr(layer, "mode", "row") == "batch" else 1
    if not isinstance(rate, int | float) or not rate or getattr(layer, "scale_by_keep", True) is False:
        return None
    return lambda x, *_: dropout(x, float(rate), list(range(first, x.dim())))
