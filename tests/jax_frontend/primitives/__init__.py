"""Applications of jaxpr primitives, in the forms that models and losses use."""

from tests.jax_frontend.primitives import control, elementwise, kinks, movement, reductions, windows
from tests.jax_frontend.primitives.table import CASES, Case

__all__ = ["CASES", "Case"]
