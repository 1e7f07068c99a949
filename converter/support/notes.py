"""Build notes: changes by a build that the model's author may not expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Layers that a note names.
_MOST_NAMES = 3


@dataclass(frozen=True)
class Note:
    """One such thing.

    Attributes:
        subject: the layer, or `loss` or `optimizer`.
        status: what became of it: `trains`, `frozen`, `fixed`, `left out`, `in the loss`, `as compiled`, `in float32`,
            `raised`, `a default`, `in the program`, `rounded`, `sorted`, `row by row`, `reads blocks`.
        why: the reason, and what to do about it.
    """

    subject: str
    status: str
    why: str


def half_notes(halves: Mapping[str, str]) -> list[Note]:
    """Return what to say of weights and layers by name that are of half precision, of which type."""
    return [
        Note(name, "in float32", f"{half} in the model: the program computes in float32, which rounds less")
        for name, half in halves.items()
    ]


def raised_notes(raised: Mapping[str, float]) -> list[Note]:
    """Return what to say of layers by name whose constants, of which the least is given, float16 has no number for."""
    return [
        Note(name, "raised", f"{least:g} is too small for float16, in which the engine computes: 6e-8 replaces it")
        for name, least in raised.items()
    ]


def grouped(notes: Iterable[Note]) -> list[Note]:
    """Return one note for all layers of which the same is said."""
    groups: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        groups.setdefault((note.status, note.why), []).append(note.subject)
    return [
        Note(
            ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if (more := len(names) - _MOST_NAMES) > 0 else ""),
            *key,
        )
        for key, names in groups.items()
    ]
