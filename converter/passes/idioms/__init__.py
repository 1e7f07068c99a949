"""Idiom recognition: what front ends spell out becomes the op that it means."""

from converter.passes.idioms.recognize import with_idioms

__all__ = ["with_idioms"]
