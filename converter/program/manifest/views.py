"""Views of a manifest, which may be anybody's: the shapes that they give, found without touching a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from converter.program.manifest.schema import fail


def check_view(where: str, view: Iterable[Any], shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    """Raise UsageError where a view does not give as many elements as are stored."""
    given = viewed_shape(where, view, shape)
    if prod(given) != prod(stored):
        fail(f"{where}: a view gives {list(given)}, and what is stored is {list(stored)}")


def viewed_shape(where: str, view: Iterable[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape after a view of anybody's. Raises UsageError for one that does not fit."""
    for step in view:
        shape = _viewed(f"{where}: view step {step!r}", step, shape)
    return shape


def _viewed(where: str, step: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape after one step of a view, without touching a tensor: the manifest may be anybody's."""
    match step:
        case ["transpose", [*axes]] if all(type(a) is int for a in axes) and sorted(axes) == list(range(len(shape))):
            return tuple(shape[a] for a in axes)
        case ["reshape", [*to]] if all(type(d) is int and d > 0 for d in to) and prod(to) == prod(shape):
            return tuple(to)
        case ["slice", int(axis), int(start), int(stop)] if (
            bool not in map(type, step) and 0 <= axis < len(shape) and 0 <= start < stop <= shape[axis]
        ):
            return (*shape[:axis], stop - start, *shape[axis + 1 :])
    return fail(f"{where} does not fit {list(shape)}")
