"""JAX tracer: models and functions as graphs of the IR, for front ends, losses and optimizers."""

# ruff: noqa: E402 (what is missing is said before it is imported)
from converter.support.extras import require

require("compiler", "a model of JAX")

from jax_frontend.augmentation import trace_augmentation
from jax_frontend.dropout import activity, dropout, in_training, random_key
from jax_frontend.findings import Findings
from jax_frontend.lookup import rows_of
from jax_frontend.mask import masked
from jax_frontend.model import Model
from jax_frontend.modules import is_module
from jax_frontend.tracing import array_leaves, array_types, trace, trace_function

__all__ = [
    "Findings",
    "Model",
    "activity",
    "array_leaves",
    "array_types",
    "dropout",
    "in_training",
    "is_module",
    "masked",
    "random_key",
    "rows_of",
    "trace",
    "trace_augmentation",
    "trace_function",
]
