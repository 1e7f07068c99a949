"""Applications of jaxpr primitives, in the forms that models and losses use."""

from tests.primitives import control, elementwise, kinks, movement, reductions, windows
from tests.primitives.table import CASES, Case

__all__ = ["CASES", "Case"]
