"""Registries: tables of rules, filled where the rules are and joined where they are used; no import registers one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
R = TypeVar("R")


class Registry(dict[K, R]):
    """Rules by what they are for, each key once."""

    def add(self, key: K, rule: R) -> None:
        """Add a rule. Raise ValueError where the key has one already."""
        if key in self:
            raise ValueError(f"{getattr(key, '__name__', key)!r} has two rules")
        self[key] = rule


def collect(*tables: Mapping[K, R]) -> Registry[K, R]:
    """Return all rules of some tables in one. Raise ValueError for a key that is in two."""
    joined: Registry[K, R] = Registry()
    for table in tables:
        for key, rule in table.items():
            joined.add(key, rule)
    return joined
