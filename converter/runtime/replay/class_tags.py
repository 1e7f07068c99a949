"""Tags of classes, by which a memory knows whether a label is still of the class whose rows it keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from converter.program.class_names import encoded

#: Bytes of a tag, and the one of a class whose name is not known.
SIZE = 8
UNKNOWN = bytes(SIZE)


def tags_of(names: Sequence[str]) -> tuple[bytes, ...]:
    """Return the tags of names by label: the first bytes of the sha256 in UTF-8; an empty name is of no class.

    Raises:
        UsageError: one holds half a character.
    """
    return tuple(hashlib.sha256(encoded(name)).digest()[:SIZE] if name else UNKNOWN for name in names)
