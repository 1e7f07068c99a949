"""The host runtime: trains a program in the stock interpreter of ai-edge-litert, on Linux and on a Raspberry Pi."""

from converter.runtime.entry import Report
from converter.runtime.export import export_adapter, export_litert_lm_adapter, import_adapter
from converter.runtime.generation import generate
from converter.runtime.gradient_range import UnderflowWarning
from converter.runtime.interchange import StateSpec
from converter.runtime.journal import Journal
from converter.runtime.loop import Evaluated, Event, Finished, Started, Step
from converter.runtime.rates import RateWarning
from converter.runtime.saved import Restored, StateWarning, load_state, save_state
from converter.runtime.session import TrainingSession
from converter.runtime.state_file import State
from converter.runtime.texts import packed_texts, rows_of_texts

__all__ = [
    "Evaluated",
    "Event",
    "Finished",
    "Journal",
    "RateWarning",
    "Report",
    "Restored",
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
