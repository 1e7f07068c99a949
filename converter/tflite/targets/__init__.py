"""Targets: what each runtime has, and what a form costs there."""

from converter.tflite.targets.target import Target, tables, target

__all__ = ["Target", "tables", "target"]
