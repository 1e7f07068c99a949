"""Entries of a configuration: each is read, known to be harmless, or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from converter.support.errors import UsageError

#: The way for every decoder that is not computed here.
OTHERWISE = (
    "build its module of transformers: module.config.use_cache = False, and pocketune.build(pocketune.TorchModel("
    "module, (ids,), outputs=['logits']), loss='next_token'), with ids = torch.zeros(1, 64, dtype=torch.long)"
)


def damaged(place: Any, what: str) -> UsageError:
    """Return the error of a configuration that no net can have."""
    return UsageError(f"{place} is damaged: {what}. Copy or download it again", page="language-models")


def not_computed(place: Any, what: str) -> UsageError:
    """Return the error of a configuration that asks for what is not computed."""
    return UsageError(f"{place} asks for {what}, which is not computed here: {OTHERWISE}", page="language-models")


class Keys:
    """The entries of a configuration, and which of them were read.

    Args:
        entries: by key.
        place: where they stand, for errors.
        defaults: what an absent entry stands for, by key.
        prefix: of the keys in the file, which readers leave out.
    """

    def __init__(
        self, entries: Mapping[str, Any], place: Any, defaults: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> None:
        self._entries, self.place, self._defaults, self._prefix = entries, place, defaults or {}, prefix
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._entries.get(self._prefix + key) is not None

    def value(self, key: str, otherwise: Any = None) -> Any:
        """Return an entry; where it is absent its default, and where there is none `otherwise`."""
        self._read.add(self._prefix + key)
        default = self._defaults.get(key)
        found = self._entries.get(self._prefix + key, default)
        return otherwise if found is None and default is None else found

    def number(self, key: str, otherwise: float | None = None, least: float = 0.0) -> float:
        """Return a finite number above `least`.

        Raises:
            UsageError: it is missing, or none.
        """
        return positive(self.value(key, otherwise), self._prefix + key, self.place, least)

    def whole(self, key: str, otherwise: int | None = None, most: int = 1 << 31) -> int:
        """Return a whole number from 1 to `most`.

        Raises:
            UsageError: it is missing, none, or larger.
        """
        found = self.number(key, otherwise)
        if found != int(found) or found > most:
            raise damaged(self.place, f"{self._prefix + key} is {found:g}, not a whole number up to {most:,}")
        return int(found)

    def flag(self, key: str, otherwise: bool = False) -> bool:
        """Return whether something is so.

        Raises:
            UsageError: it is neither true nor false.
        """
        found = self.value(key, otherwise)
        if not isinstance(found, bool | np.bool_):
            raise damaged(self.place, f"{self._prefix + key} is {found!r}, neither true nor false")
        return bool(found)

    def optional(self, key: str) -> float | None:
        """Return a positive number, or None where it is absent, null or 0."""
        return None if self.value(key) in (None, 0, False) else self.number(key)

    def only(self, key: str, *computed: Any) -> None:
        """Raise UsageError where an entry has another value than those that are computed."""
        if (found := self.value(key)) is not None and found not in computed:
            raise not_computed(self.place, f"{self._prefix + key} {found!r}")

    def refuse_others(self, harmless: Collection[str]) -> None:
        """Raise UsageError where entries were not read that are not known to be harmless.

        Args:
            harmless: keys, and beginnings of keys that end in a dot.
        """
        begins = tuple(key for key in harmless if key.endswith("."))
        others = [
            key
            for key, value in self._entries.items()
            if value is not None
            and key not in self._read
            and key not in self._defaults
            and key.startswith(self._prefix)
            and key.removeprefix(self._prefix) not in harmless
            and not key.removeprefix(self._prefix).startswith(begins)
        ]
        if others:
            raise UsageError(
                f"{self.place} has the entry {others[0]} = {_shown(self._entries[others[0]])}"
                + (f", and {len(others) - 1} more that are not known here either" if others[1:] else "")
                + ", which is not known here: the net may compute something else by it. Where it does not, take "
                f"it out of the file; where it does, {OTHERWISE}",
                page="language-models",
            )


def positive(found: Any, key: str, place: Any, least: float = 0.0) -> float:
    """Return a finite number above `least`.

    Raises:
        UsageError: it is none.
    """
    if isinstance(found, np.generic):
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, int | float) or not least < found < float("inf"):
        raise damaged(place, f"{key} is {_shown(found)}, not a positive number")
    return float(found)


def numbers(found: Any, key: str, place: Any, count: int) -> Sequence[float]:
    """Return a list of so many positive numbers.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(found, list | np.ndarray) or len(found) != count:
        raise damaged(place, f"{key} is {_shown(found)}, not a list of {count} numbers")
    return [positive(each, key, place) for each in found]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
