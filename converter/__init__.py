"""Pocketune's compiler: a model becomes a training program that the stock inference runtime runs.

program = converter.build(model, optimizer="sgd", update="sparse", batch=8)
program.write("model.tflite")
session = converter.runtime.TrainingSession("model.tflite")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from converter.compare import compare_schemes
from converter.errors import UnsupportedError
from converter.functions import Function, function
from converter.pipeline import build
from converter.program import Program
from converter.sparse import UpdateScheme

if TYPE_CHECKING:
    from converter import runtime

__all__ = ["Function", "Program", "UnsupportedError", "UpdateScheme", "build", "compare_schemes", "function", "runtime"]


def __getattr__(name: str) -> Any:
    """Loads the host runtime, and LiteRT with it, when it is first asked for."""
    if name == "runtime":
        return import_module("converter.runtime")
    raise AttributeError(f"module 'converter' has no attribute {name!r}")
