"""Which part of a model should train: contribution analysis, exact costs, and a search under budgets."""

from converter.searching.effort import Effort
from converter.searching.found import Found
from converter.searching.run import search

__all__ = ["Effort", "Found", "search"]
