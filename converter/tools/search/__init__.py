"""Update scheme search: contribution analysis, exact costs, and a search under budgets."""

from converter.tools.search.effort import Effort
from converter.tools.search.found import Found
from converter.tools.search.run import search

__all__ = ["Effort", "Found", "search"]
