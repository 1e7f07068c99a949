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
    from converter.driver.build import build
    from converter.driver.compare import compare_schemes
    from converter.driver.functions import Function, function
    from converter.driver.program import Program
    from converter.program.manifest import Certificate
    from converter.support.errors import UnsupportedError
    from converter.tools.certify.certify import certify
    from converter.tools.estimate import estimate
    from converter.tools.learn import learn
    from converter.tools.report.make import report
    from converter.tools.search import search
    from converter.training.schemes import Channels, LoRA, SkipLoRA, UpdateScheme

__all__ = [
    "Certificate",
    "Channels",
    "Function",
    "LoRA",
    "Program",
    "SkipLoRA",
    "UnsupportedError",
    "UpdateScheme",
    "build",
    "build_heads",
    "certify",
    "compare_schemes",
    "estimate",
    "function",
    "learn",
    "report",
    "runtime",
    "search",
]

#: Where each name is, which is loaded when it is first asked for: a session on a phone's host needs no compiler.
_HOMES = {
    "Certificate": "converter.program.manifest",
    "Channels": "converter.training.schemes",
    "Function": "converter.driver.functions",
    "LoRA": "converter.training.schemes",
    "Program": "converter.driver.program",
    "SkipLoRA": "converter.training.schemes",
    "UnsupportedError": "converter.support.errors",
    "UpdateScheme": "converter.training.schemes",
    "build": "converter.driver.build",
    "build_heads": "converter.driver.build",
    "certify": "converter.tools.certify.certify",
    "compare_schemes": "converter.driver.compare",
    "estimate": "converter.tools.estimate",
    "function": "converter.driver.functions",
    "learn": "converter.tools.learn",
    "report": "converter.tools.report.make",
    "search": "converter.tools.search",
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
