"""Model export: a plain inference model, or its weights, from a program and a state."""

from converter.runtime.export.export import Exported, State, export_inference, export_weights, trained_weights

__all__ = ["Exported", "State", "export_inference", "export_weights", "trained_weights"]
