"""Model export: a plain inference model, or its weights, from a program and a state."""

from converter.runtime.export.adapter import export_adapter, import_adapter
from converter.runtime.export.export import Exported, State, export_inference, export_weights, trained_weights
from converter.runtime.export.litert_lm import export_litert_lm_adapter

__all__ = [
    "Exported",
    "State",
    "export_adapter",
    "export_inference",
    "export_litert_lm_adapter",
    "export_weights",
    "import_adapter",
    "trained_weights",
]
