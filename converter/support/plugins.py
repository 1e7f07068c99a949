"""Plugins: what other distributions add, as entry points in their metadata; each is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from converter.support.errors import UsageError


def plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, the first of each; nothing is loaded."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, point)
    return found


def load(point: EntryPoint, kind: type) -> Any:
    """Return what an entry point names.

    Args:
        point: of another distribution.
        kind: what it must be an object of; for a class, what it must be a class of.

    Raises:
        UsageError: it cannot be imported, or is something else; says of which distribution it is.
    """
    advice = "" if point.dist is None else f" Update it, or remove it: pip uninstall {point.dist.name}"
    said = said_of(point)
    try:
        made = point.load()
    except Exception as error:  # another's code may raise anything when it is imported
        raise UsageError(
            f"{said} cannot be loaded: {type(error).__name__}: {error}.{advice}", page="plugins"
        ) from error
    if not (issubclass(made, kind) if isinstance(made, type) else isinstance(made, kind)):
        raise UsageError(f"{said} is no {kind.__name__}, but {made!r}.{advice}", page="plugins")
    return made


def said_of(point: EntryPoint) -> str:
    """Return what an entry point names and which distribution has it, to begin a sentence with."""
    dist = point.dist
    home = "an unknown distribution" if dist is None else f"the distribution {dist.name} {dist.version}"
    return f"{point.value}, which {home} adds as {point.name!r} of {point.group},"
