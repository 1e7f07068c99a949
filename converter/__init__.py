"""Pocketune's compiler: a model becomes a training program that the stock inference runtime runs.

program = converter.build(model, optimizer="sgd", update="sparse", batch=8)
program.write("model.tflite")
session = converter.runtime.TrainingSession("model.tflite")
"""

from __future__ import annotations

# Nothing is imported here: until the command line has set what Ctrl-C does, it is Python's traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from converter import runtime
    from converter.certification.certify import certify
    from converter.compare import compare_schemes
    from converter.errors import UnsupportedError
    from converter.estimating import estimate
    from converter.functions import Function, function
    from converter.pipeline import build
    from converter.program.manifest import Certificate
    from converter.program.program import Program
    from converter.reporting.make import report
    from converter.searching import search
    from converter.sparse import Channels, LoRA, UpdateScheme

__all__ = [
    "Certificate",
    "Channels",
    "Function",
    "LoRA",
    "Program",
    "UnsupportedError",
    "UpdateScheme",
    "build",
    "certify",
    "compare_schemes",
    "estimate",
    "function",
    "report",
    "runtime",
    "search",
]

#: Where each name is, which is loaded when it is first asked for: a session on a phone's host needs no compiler.
_HOMES = {
    "Certificate": "converter.program.manifest",
    "Channels": "converter.sparse",
    "Function": "converter.functions",
    "LoRA": "converter.sparse",
    "Program": "converter.program.program",
    "UnsupportedError": "converter.errors",
    "UpdateScheme": "converter.sparse",
    "build": "converter.pipeline",
    "certify": "converter.certification.certify",
    "compare_schemes": "converter.compare",
    "estimate": "converter.estimating",
    "function": "converter.functions",
    "report": "converter.reporting.make",
    "search": "converter.searching",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "runtime":
        return import_module("converter.runtime")
    if name not in _HOMES:
        raise AttributeError(f"module 'converter' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
