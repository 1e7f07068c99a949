"""What layers of PyTorch do in training alone and a program leaves out, which no graph of them shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from converter.support.notes import Note

_AS_IN_EVAL = "the program leaves it out, in its steps, too"


def notes_of_layers(module: nn.Module) -> list[Note]:
    """Return what to say of the layers of a module; those in eval() of one in train() do the same in PyTorch."""
    notes = []
    for path, layer in module.named_modules():
        does = _done_in_training(layer)
        if does and not (module.training and not layer.training):
            notes.append(Note(path or "the module", "left out", f"{does}: {_AS_IN_EVAL}"))
    return notes


def _done_in_training(layer: nn.Module) -> str:
    """What a layer does in training alone; nothing for what is marked in a graph, as dropout."""
    for kind, said in _SAID.items():
        if isinstance(layer, kind):
            return said(layer)
    if any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values()):
        return _POWER
    return ""


_POWER = "its spectral norm is by vectors that PyTorch makes better in each call in train()"


def _attention(layer: Any) -> str:
    return f"dropout of {layer.dropout:g} on the weights of attention" if layer.dropout else ""


def _alpha(layer: Any) -> str:
    return f"{type(layer).__name__} of {layer.p:g}" if layer.p else ""


def _rrelu(layer: Any) -> str:
    if layer.lower == layer.upper:
        return ""
    return f"random slopes from {layer.lower:g} to {layer.upper:g}, in whose place their mean stands"


_SAID: dict[type[nn.Module], Callable[[Any], str]] = {
    nn.MultiheadAttention: _attention,
    nn.AlphaDropout: _alpha,
    nn.FeatureAlphaDropout: _alpha,
    nn.RReLU: _rrelu,
    _SpectralNorm: lambda layer: _POWER,
}
