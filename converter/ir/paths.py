"""Paths of parameters: names whose parts are parted by slashes (Keras, JAX, `.tflite`) or by dots (PyTorch)."""

from __future__ import annotations


def parts_of(name: str) -> list[str]:
    """Return the parts of a name: `conv/kernel` at its slashes; one without any, `conv.weight`, at its dots."""
    return name.split("/" if "/" in name else ".")


def layer_of_weight(name: str) -> str:
    """Return the layer that a parameter's name tells: all but its last part, or the name where it has one part."""
    return name.rpartition("/")[0] or name.rpartition(".")[0] or name
