"""Untrusted configurations in Keras' format, read as data."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any


class Unreadable(Exception):
    """Why a configuration cannot be taken over."""


class Numbers:
    """The numbers and flags of a configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __call__(self, name: str, default: float) -> float:
        """Return a number, or its default where there is none. Raises Unreadable for anything else."""
        value = self.config.get(name, default)
        return number(name, default if value is None else value)

    def flag(self, name: str) -> bool:
        """Return whether something is on."""
        return self.config.get(name) not in (None, False)

    def several(self, name: str) -> list[float]:
        """Return numbers. Raises Unreadable."""
        values = self.config.get(name)
        if not isinstance(values, list | tuple):
            raise Unreadable(f"its {name} are {str(values)[:40]!r}")
        return [number(name, value) for value in values]


def number(name: str, value: Any) -> float:
    """Return a finite number. Raises Unreadable for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise Unreadable(f"its {name} is {str(value)[:40]!r}")
    return float(value)
