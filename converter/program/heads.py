"""Files of several heads: what is called how in them, and the metadata of one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from converter.program.manifest import FEATURES
from converter.support.errors import UsageError, nearest

#: The metadata entry with the names of the heads, in order.
HEADS = "pocketune.heads"
#: What a head may be called.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
#: So many names are told.
_MOST = 20


def of_entry(entry: str, head: str) -> str:
    """Return what a metadata entry of a program is called of a head: `pocketune.initial/w` is `.../birds/w`."""
    base, slash, rest = entry.partition("/")
    return f"{base}/{head}{slash}{rest}"


def of_signature(name: str, head: str | None) -> str:
    """Return what a signature of a head is called in the file: `features` is of all of them."""
    return name if head is None or name == FEATURES else f"{head}/{name}"


def of_subgraph(name: str, head: str | None) -> str | None:
    """Return what a subgraph of the file is called in the manifest of a head, None for one of another head.

    Those of loops are named after the signature that runs them.
    """
    of, _, rest = name.partition("/")
    if head is None or of == FEATURES:
        return name
    return rest if of == head else None


def metadata_of(metadata: Mapping[str, memoryview], head: str | None) -> Mapping[str, memoryview]:
    """Return the metadata of a program, or of one head of a file of several as though it were alone.

    Raises:
        UsageError: the file has no such head, or several and none is asked for.
    """
    if HEADS not in metadata:
        if head is not None:
            raise UsageError(f"it has one head, and no head {head!r}: leave the head out", page="program-files")
        return metadata
    names = _names(metadata[HEADS])
    told = ", ".join(names[:_MOST]) + ", ..." * (len(names) > _MOST)
    if head is None:
        raise UsageError(
            f"it holds several heads: {told}. Say which: head={names[0]!r} in Python, --head {names[0]} of a command "
            "that takes it; others take a program of one head",
            page="program-files",
        )
    if head not in names:
        raise UsageError(f"it has no head {head!r}.{nearest(str(head), names)} It has {told}.", page="program-files")
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
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and NAME.fullmatch(n) for n in names):
        raise UsageError("its list of heads is damaged: build it again", page="program-files")
    return names
