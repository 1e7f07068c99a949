"""Weights beside a module: a mapping by the names of `state_dict()` that replaces the module's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch

from converter.ir import LazyArray
from converter.support.errors import UsageError, nearest

Weights = Mapping[str, np.ndarray | LazyArray]


def for_all_names(module: torch.nn.Module, weights: Weights) -> Weights:
    """Return the weights of a module by all of their names: what is tied has several, and is given by one of them.

    Raises:
        UsageError: the module has no such tensor, or one of another shape, or one on the device `meta` is not among
            the weights.
    """
    own = _tensors(module)
    for name, array in weights.items():
        if name not in own:
            raise UsageError(f"weights: {type(module).__name__} has no {name!r}.{nearest(name, own)}", page="pytorch")
        if tuple(array.shape) != tuple(own[name].shape):
            raise UsageError(
                f"weights: {name} is {list(array.shape)}, and in the module {list(own[name].shape)}", page="pytorch"
            )
    given = {id(own[name]): array for name, array in weights.items()}
    for name, tensor in own.items():
        if tensor.is_meta and id(tensor) not in given:
            raise UsageError(f"{name} is on the device meta and has no value: add it to weights", page="pytorch")
    return {name: given[id(tensor)] for name, tensor in own.items() if id(tensor) in given}


def on_cpu(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module whose tensors on the device `meta` are on the CPU: one number each, repeated by strides of 0."""
    if not any(tensor.is_meta for tensor in _tensors(module).values()):
        return module
    module, made = deepcopy(module), dict[int, torch.Tensor]()  # what is tied stays so
    for layer in module.modules():
        for held in (layer._parameters, layer._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.is_meta:
                    held[name] = made.setdefault(id(tensor), _repeated(tensor))
    return module


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    number = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    if not isinstance(tensor, torch.nn.Parameter):
        return number
    return torch.nn.Parameter(number, requires_grad=tensor.requires_grad)
