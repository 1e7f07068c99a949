"""Targets: what each runtime has, and what a form costs there."""

from converter.targets.target import Target, names, target

__all__ = ["Target", "names", "target"]
