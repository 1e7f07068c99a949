"""The host runtime: trains a program in the stock interpreter of ai-edge-litert, on Linux and on a Raspberry Pi."""

from __future__ import annotations

from converter.runtime.data.texts import packed_texts, rows_of_texts
from converter.runtime.interpreters.entry import Report
from converter.runtime.replay.memory import ReplayMemory
from converter.runtime.session.generation import generate
from converter.runtime.session.gradient_range import UnderflowWarning
from converter.runtime.session.journal import Journal
from converter.runtime.session.loop import Drifted, Evaluated, Event, Finished, Skipped, Started, Step
from converter.runtime.session.rates import RateWarning
from converter.runtime.session.session import TrainingSession
from converter.runtime.session.skipping import SkipLearned
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import Restored, StateWarning, load_state, save_state
from converter.runtime.state.state_file import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from converter.runtime.export import export_adapter, export_litert_lm_adapter, import_adapter

__all__ = [
    "Drifted",
    "Evaluated",
    "Event",
    "Finished",
    "Journal",
    "RateWarning",
    "ReplayMemory",
    "Report",
    "Restored",
    "SkipLearned",
    "Skipped",
    "Started",
    "State",
    "StateSpec",
    "StateWarning",
    "Step",
    "TrainingSession",
    "UnderflowWarning",
    "export_adapter",
    "export_litert_lm_adapter",
    "generate",
    "import_adapter",
    "load_state",
    "packed_texts",
    "rows_of_texts",
    "save_state",
]

#: Loaded when they are first asked for: a session trains without what writes models, which is 8 MB of Python's memory.
_EXPORTS = ("export_adapter", "export_litert_lm_adapter", "import_adapter")


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'converter.runtime' has no attribute {name!r}")
    from converter.runtime import export

    return getattr(export, name)


def __dir__() -> list[str]:
    return __all__
