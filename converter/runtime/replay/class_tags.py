"""Tags of classes, by which a memory knows whether a label is still of the class whose rows it keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

#: Bytes of a tag, and the one of a class whose name is not known.
SIZE = 8
UNKNOWN = bytes(SIZE)


def tags_of(names: Sequence[str]) -> tuple[bytes, ...]:
    """Return the tags of names by label: the first bytes of the sha256 in UTF-8; an empty name is of no class."""
    return tuple(hashlib.sha256(name.encode()).digest()[:SIZE] if name else UNKNOWN for name in names)
