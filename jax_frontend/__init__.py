"""JAX models and functions, traced to the IR."""

from jax_frontend.model import Model
from jax_frontend.tracing import trace, trace_function

__all__ = ["Model", "trace", "trace_function"]
