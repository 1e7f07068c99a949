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
        SkipLoRA,
        UnsupportedError,
        UpdateScheme,
        build,
        build_heads,
        certify,
        compare_schemes,
        estimate,
        federated,
        function,
        learn,
        report,
        runtime,
        search,
    )
    from converter.frontends.decoder import Model as LanguageModel
    from converter.frontends.decoder import Tokenizer
    from converter.frontends.tflite import Model as TFLiteModel
    from converter.frontends.torch import Model as TorchModel
    from converter.ir import LazyArray
    from converter.runtime import (
        Drifted,
        Evaluated,
        Finished,
        Journal,
        ReplayMemory,
        SkipLearned,
        Skipped,
        Started,
        Step,
        TrainingSession,
    )
    from converter.support.errors import PocketuneError, UsageError
    from converter.tools.search import Effort
    from converter.training import losses
    from jax_frontend import Model, activity, dropout, in_training, masked, random_key

__all__ = [
    "Certificate",
    "Channels",
    "Drifted",
    "Effort",
    "Evaluated",
    "Finished",
    "Function",
    "Journal",
    "LanguageModel",
    "LazyArray",
    "LoRA",
    "Model",
    "PocketuneError",
    "Program",
    "ReplayMemory",
    "SkipLearned",
    "SkipLoRA",
    "Skipped",
    "Started",
    "Step",
    "TFLiteModel",
    "Tokenizer",
    "TorchModel",
    "TrainingSession",
    "UnsupportedError",
    "UpdateScheme",
    "UsageError",
    "activity",
    "build",
    "build_heads",
    "certify",
    "compare_schemes",
    "dropout",
    "estimate",
    "federated",
    "function",
    "in_training",
    "learn",
    "losses",
    "masked",
    "random_key",
    "report",
    "runtime",
    "search",
]

#: What each name stands for that `converter` does not offer itself.
_HOMES = {
    "Drifted": "converter.runtime.Drifted",
    "Effort": "converter.tools.search.Effort",
    "Evaluated": "converter.runtime.Evaluated",
    "Finished": "converter.runtime.Finished",
    "Journal": "converter.runtime.Journal",
    "LanguageModel": "converter.frontends.decoder.Model",
    "LazyArray": "converter.ir.LazyArray",
    "Model": "jax_frontend.Model",
    "PocketuneError": "converter.support.errors.PocketuneError",
    "ReplayMemory": "converter.runtime.ReplayMemory",
    "SkipLearned": "converter.runtime.SkipLearned",
    "Skipped": "converter.runtime.Skipped",
    "Started": "converter.runtime.Started",
    "Step": "converter.runtime.Step",
    "TFLiteModel": "converter.frontends.tflite.Model",
    "Tokenizer": "converter.frontends.decoder.Tokenizer",
    "TorchModel": "converter.frontends.torch.Model",
    "TrainingSession": "converter.runtime.TrainingSession",
    "UsageError": "converter.support.errors.UsageError",
    "activity": "jax_frontend.activity",
    "dropout": "jax_frontend.dropout",
    "in_training": "jax_frontend.in_training",
    "masked": "jax_frontend.masked",
    "random_key": "jax_frontend.random_key",
}
#: Modules of the package; `import pocketune` alone loads none.
_MODULES = ("federated", "losses", "runtime")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'pocketune' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        return getattr(import_module("converter"), name)
    module, _, attribute = _HOMES[name].rpartition(".")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
