"""Optimizers as graphs: `trace` (needs JAX and optax) and `apply` (does not)."""

from converter.training.optim.apply import apply_updates, layer_of
from converter.training.optim.program import PARAMETER, OptimizerProgram, is_elementwise, with_shapes

__all__ = ["PARAMETER", "OptimizerProgram", "apply_updates", "is_elementwise", "layer_of", "with_shapes"]
