"""Idiom recognition: what front ends spell out becomes the op that it means."""

from converter.passes.raising.raise_forms import raised

__all__ = ["raised"]
