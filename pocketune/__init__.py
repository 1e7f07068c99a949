"""Pocketune: a model becomes a training program that the stock inference runtime runs.

program = pocketune.build(model, optimizer="sgd", update="sparse", batch=8)
program.write("model.tflite")
session = pocketune.TrainingSession("model.tflite")
"""

from __future__ import annotations

# Nothing is imported here: a session needs no compiler, and the command line first says what Ctrl-C does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from converter import (
        Certificate,
        Channels,
        Function,
        LoRA,
        Program,
        UnsupportedError,
        UpdateScheme,
        build,
        certify,
        compare_schemes,
        estimate,
        function,
        report,
        runtime,
        search,
    )
    from converter.ir import LazyArray
    from converter.runtime import Evaluated, Finished, Journal, Started, Step, TrainingSession
    from converter.support.errors import PocketuneError
    from converter.training import losses
    from jax_frontend import Model, activity, dropout, in_training, masked, random_key

__all__ = [
    "Certificate",
    "Channels",
    "Evaluated",
    "Finished",
    "Function",
    "Journal",
    "LazyArray",
    "LoRA",
    "Model",
    "PocketuneError",
    "Program",
    "Started",
    "Step",
    "TrainingSession",
    "UnsupportedError",
    "UpdateScheme",
    "activity",
    "build",
    "certify",
    "compare_schemes",
    "dropout",
    "estimate",
    "function",
    "in_training",
    "losses",
    "masked",
    "random_key",
    "report",
    "runtime",
    "search",
]

#: Where each name is that `converter` does not offer itself.
_HOMES = {
    "Evaluated": "converter.runtime",
    "Finished": "converter.runtime",
    "Journal": "converter.runtime",
    "LazyArray": "converter.ir",
    "Model": "jax_frontend",
    "PocketuneError": "converter.support.errors",
    "Started": "converter.runtime",
    "Step": "converter.runtime",
    "TrainingSession": "converter.runtime",
    "activity": "jax_frontend",
    "dropout": "jax_frontend",
    "in_training": "jax_frontend",
    "masked": "jax_frontend",
    "random_key": "jax_frontend",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'pocketune' has no attribute {name!r}")
    if name == "losses":
        return import_module("converter.training.losses")
    return getattr(import_module(_HOMES.get(name, "converter")), name)


def __dir__() -> list[str]:
    return __all__
