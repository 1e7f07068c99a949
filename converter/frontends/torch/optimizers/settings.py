"""Settings of a parameter group of `torch.optim`."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from converter.support.errors import UsageError


class Settings:
    """What a parameter group is trained with.

    Args:
        kind: the name of the optimizer's class.
        group: an entry of `optimizer.param_groups`.
    """

    def __init__(self, kind: str, group: Mapping[str, Any]) -> None:
        self._kind, self._group = kind, group

    def number(self, name: str) -> float:
        """Return a setting that is a number; 0 where there is none. Raise UsageError where it is none."""
        return self._number(name, self._group.get(name) or 0.0)

    def pair(self, name: str) -> tuple[float, float]:
        """Return a setting of two numbers. Raise UsageError where it is none."""
        first, second = self._group[name]
        return self._number(name, first), self._number(name, second)

    def flag(self, name: str) -> bool:
        """Return a setting that is true or false; False where there is none."""
        return bool(self._group.get(name))

    def _number(self, name: str, value: Any) -> float:
        number = float(value)  # of a tensor, too
        if not isfinite(number):
            raise UsageError(f"the optimizer {self._kind}: {name} is {number}", page="optimizers")
        return number
