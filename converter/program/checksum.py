"""The checksum of a program file: a sha256 over every byte of it, carried inside it.

A runtime runs a file with flipped bits as if nothing were wrong, so whoever opens a program checks the checksum first,
before any of its tables is read. The metadata entry `pocketune.seal` is `pocketune-sha256:` and 64 hexadecimal digits:
the sha256 of the file with these digits replaced by zeros. It finds accidents; it is no signature.
"""

from __future__ import annotations

import hashlib
import mmap

from converter.support.errors import UsageError

#: Name of the metadata entry.
ENTRY = "pocketune.seal"
_MARK = b"pocketune-sha256:"
_DIGITS = 64
#: A state file begins so, which is taken for a program at times.
STATE = b"PTSTATE\n"
#: A replay memory begins so.
MEMORY = b"PTMEMRY\n"
#: The entry before the checksum is computed.
BLANK = _MARK + b"0" * _DIGITS


def add_checksum(file: memoryview, start: int) -> None:
    """Writes the digest of a file into its entry `BLANK`, which begins at `start`, in place."""
    file[start + len(_MARK) : start + len(BLANK)] = hashlib.sha256(file).hexdigest().encode()


def has_checksum(data: bytes | mmap.mmap) -> bool:
    """Return whether a file looks like a program, damaged or not."""
    return data.find(_MARK) >= 0


def with_new_checksum(data: bytes) -> bytes:
    """Return a file that was changed on purpose, with its checksum computed again."""
    changed, start = bytearray(data), data.index(_MARK)
    changed[start : start + len(BLANK)] = BLANK
    add_checksum(memoryview(changed), start)
    return bytes(changed)


def verify_checksum(data: bytes | mmap.mmap) -> str:
    """Finds any changed byte of a program file.

    Returns:
        Its digest: no two programs have the same.

    Raises:
        UsageError: the file is not as it was built, or was not built by Pocketune.
    """
    if data[: len(STATE)] == STATE:
        raise UsageError(
            "it is a saved state, not a program: name its program first, and then the state "
            "(pocketune state FILE shows what a state holds)",
            page="program-files",
        )
    mark = data.find(_MARK)
    if mark < 0:
        raise UsageError(
            "it is no Pocketune program, or damaged: it has no checksum;"
            " a model that was exported has none, and does not train",
            page="program-files",
        )
    start, end = mark + len(_MARK), mark + len(BLANK)
    digest = hashlib.sha256(memoryview(data)[:start])
    digest.update(b"0" * _DIGITS)
    digest.update(memoryview(data)[end:])
    if digest.hexdigest().encode() != data[start:end]:
        raise UsageError("it is damaged, its checksum does not match: build or copy it again", page="program-files")
    return digest.hexdigest()
