"""Changes of a manifest: each a function that changes one in its place, or gives the bytes of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Json = Any


class Bad(NamedTuple):
    """A manifest that is refused.

    Attributes:
        of: the good one.
        change: what is changed in it; of bytes where it is a change of its text.
        place: a part of what the refusal says, in all languages.
    """

    of: str
    change: Callable[[Json], Json]
    place: str


def put(*way: Any) -> Callable[[Json], Json]:
    """What stands at a place, the last of these is what is put there."""
    *path, last, value = way

    def change(manifest: Json) -> None:
        holder = _at(manifest, path)
        if isinstance(holder, list) and last == len(holder):
            holder.append(value)
        else:
            holder[last] = value

    return change


def drop(*way: Any) -> Callable[[Json], Json]:
    """What stands at a place is not there."""
    return lambda manifest: _at(manifest, way[:-1]).pop(way[-1])


def again(*way: Any, **other: Any) -> Callable[[Json], Json]:
    """A list's first item stands there once more, with other fields."""
    return lambda manifest: _at(manifest, way).append({**_at(manifest, way)[0], **other})


def copied(*way: Any, **other: Any) -> Callable[[Json], Json]:
    """A field stands there under another name too, with other fields."""
    *path, old, new = way

    def change(manifest: Json) -> None:
        holder = _at(manifest, path)
        holder[new] = {**holder[old], **other}

    return change


def renamed(*way: Any) -> Callable[[Json], Json]:
    """A field has another name."""
    *path, old, new = way

    def change(manifest: Json) -> None:
        holder = _at(manifest, path)
        holder[new] = holder.pop(old)

    return change


def all_of(*changes: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """Several changes."""

    def change(manifest: Json) -> None:
        for each in changes:
            each(manifest)

    return change


def text(old: str, new: str) -> Callable[[Json], Json]:
    """A piece of the text is another one."""

    def change(manifest: Json) -> bytes:
        before = json.dumps(manifest, ensure_ascii=False)
        assert old in before, old
        return before.replace(old, new, 1).encode()

    return change


def _at(holder: Json, way: Any) -> Json:
    for key in way:
        holder = holder[key]
    return holder
