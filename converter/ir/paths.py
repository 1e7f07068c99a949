"""Paths of parameters: names whose parts are parted by slashes (Keras, JAX, `.tflite`) or by dots (PyTorch)."""

from __future__ import annotations

import re

#: What stands between a layer's name and the last part of what one of its weights is computed of.
_PARAMETRIZED = re.compile(r"\.parametrizations\.[^.]+(?=\.original\d*$)")


def parts_of(name: str) -> list[str]:
    """Return the parts of a name: `conv/kernel` at its slashes; one without any, `conv.weight`, at its dots."""
    return name.split("/" if "/" in name else ".")


def layer_of_weight(name: str) -> str:
    """Return the layer that a parameter's name tells: all but its last part, or the name where it has one part.

    PyTorch's parametrizations (`head.parametrizations.weight.original0`, a norm of weights) are of the layer that has
    them.
    """
    name = _PARAMETRIZED.sub("", name)
    return name.rpartition("/")[0] or name.rpartition(".")[0] or name
