"""What no graph of a module shows, and that would train otherwise than in PyTorch: refused before it is traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from converter.support.errors import UsageError

_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_NO_HOOKS = (
    "a program does not run it. Remove it (the handle's remove()), and write what it does to gradients into forward"
)


def check_module(module: torch.nn.Module) -> None:
    """Raise UsageError, with the layer, for what cannot be traced or has an effect on gradients after the graph."""
    for path, layer in module.named_modules():
        where = f"layer {path} ({type(layer).__name__})" if path else type(layer).__name__
        if isinstance(layer, torch.jit.ScriptModule):
            _refuse(f"{where} is TorchScript, which has no Python to trace: build the module that it was made of")
        held = dict(layer.named_parameters(recurse=False)) | dict(layer.named_buffers(recurse=False))
        if unmade := [name for name, tensor in held.items() if torch.nn.parameter.is_lazy(tensor)]:
            _refuse(
                f"{where} has no {' and no '.join(unmade)} yet, as the module was not called: call it once with a "
                "batch, module(x), make the optimizer, then build"
            )
        if any(getattr(layer, name) for name in _HOOKS):
            _refuse(f"{where} has a backward hook: {_NO_HOOKS}")
        for name, p in layer.named_parameters(recurse=False):
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                _refuse(f"the parameter {name} of {where} has a hook: {_NO_HOOKS}")
    _check_memory(module)


class _Lies(NamedTuple):
    """Where the numbers of a tensor lie: in which memory, from which byte to which."""

    memory: int
    begin: int
    end: int
    name: str
    trains: bool


def _check_memory(module: torch.nn.Module) -> None:
    """Raise UsageError where a step would change another tensor with a parameter, unseen by the graph."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    lying = sorted(place for name, tensor in tensors for place in _lies(name, tensor))
    for one, other in pairwise(lying):
        if one.memory == other.memory and other.begin < one.end and (one.trains or other.trains):
            _refuse(
                f"{one.name} and {other.name} are two tensors in the same memory, so that PyTorch changes both by "
                "either's gradient. Tie them, b.weight = a.weight, or give each its own: nn.Parameter(tensor.clone())"
            )


def _lies(name: str, tensor: torch.Tensor) -> Iterator[_Lies]:
    if tensor.is_meta or tensor.layout != torch.strided or not tensor.numel():
        return
    steps: Sequence[int] = tensor.stride()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, steps, strict=True))
    begin = tensor.data_ptr()
    memory = tensor.untyped_storage().data_ptr()
    yield _Lies(memory, begin, begin + (last + 1) * tensor.element_size(), name, tensor.requires_grad)


def _refuse(why: str) -> Any:
    raise UsageError(why, page="pytorch")
