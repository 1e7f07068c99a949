"""Optimizers as graphs: `trace` (needs JAX and optax) and `apply` (does not)."""

from converter.optim.apply import apply_updates, layer_of
from converter.optim.program import OptimizerProgram

__all__ = ["OptimizerProgram", "apply_updates", "layer_of"]
