"""Files of several heads: what is called how in them, and the metadata of one."""

from __future__ import annotations

import json
from collections.abc import Mapping

from converter.program.manifest import FEATURES
from converter.support.errors import UsageError, nearest

#: The metadata entry with the names of the heads, in order.
HEADS = "pocketune.heads"


def of_entry(entry: str, head: str) -> str:
    """Return what a metadata entry of a program is called of a head: `pocketune.initial/w` is `.../birds/w`."""
    base, slash, rest = entry.partition("/")
    return f"{base}/{head}{slash}{rest}"


def of_signature(name: str, head: str | None) -> str:
    """Return what a signature of a head is called in the file: `features` is of all of them."""
    return name if head is None or name == FEATURES else f"{head}/{name}"


def metadata_of(metadata: Mapping[str, memoryview], head: str | None) -> Mapping[str, memoryview]:
    """Return the metadata of a program, or of one head of a file of several as though it were alone.

    Raises:
        UsageError: the file has no such head, or several and none is asked for.
    """
    if HEADS not in metadata:
        if head is not None:
            raise UsageError(f"it has one head, and no head {head!r}: leave head= out", page="program-files")
        return metadata
    names = _names(metadata[HEADS])
    if head is None:
        raise UsageError(
            f"it holds several heads: {', '.join(names)}. Say which: head={names[0]!r}", page="program-files"
        )
    if head not in names:
        raise UsageError(
            f"it has no head {head!r}.{nearest(head, names)} It has {', '.join(names)}.", page="program-files"
        )
    own = {}
    for name, data in metadata.items():
        base, slash, rest = name.partition("/")
        of, behind, left = rest.partition("/")
        if of == head:
            own[base + behind + left] = data
        elif not slash and name != HEADS:
            own[name] = data
    return own


def _names(entry: memoryview) -> list[str]:
    try:
        names = json.loads(bytes(entry))
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError("its list of heads is damaged: build it again", page="program-files")
    return names
