"""The seal of a program file: a sha256 over every byte of it, carried inside it.

A runtime runs a file with flipped bits as if nothing were wrong, so whoever opens a program checks the seal first,
before any of its tables is read. The metadata entry `pocketune.seal` is `pocketune-sha256:` and 64 hexadecimal digits:
the sha256 of the file with these digits replaced by zeros. It finds accidents; it is no signature.
"""

from __future__ import annotations

import hashlib
import mmap
import re

from converter.errors import UsageError

#: Name of the metadata entry.
ENTRY = "pocketune.seal"
_MARK = b"pocketune-sha256:"
_DIGITS = 64
#: The entry before the file is sealed.
BLANK = _MARK + b"0" * _DIGITS


def seal(file: memoryview) -> None:
    """Writes the digest of a file that holds the entry `BLANK` there, in place."""
    digits = _digits(file)
    file[digits] = hashlib.sha256(file).hexdigest().encode()


def reseal(data: bytes) -> bytes:
    """The seal of a sealed file that was changed on purpose."""
    changed = bytearray(data)
    digits = _digits(changed)
    changed[digits] = b"0" * _DIGITS
    seal(memoryview(changed))
    return bytes(changed)


def check_seal(data: bytes | mmap.mmap) -> str:
    """Finds any changed byte of a program file.

    Returns:
        Its digest: no two programs have the same.

    Raises:
        UsageError: the file is not as it was built, or was not built by Pocketune.
    """
    digits = _digits(data)
    digest = hashlib.sha256(memoryview(data)[: digits.start])
    digest.update(b"0" * _DIGITS)
    digest.update(memoryview(data)[digits.stop :])
    if digest.hexdigest().encode() != data[digits]:
        raise UsageError("it is damaged, its seal does not match: build or copy it again")
    return digest.hexdigest()


def _digits(file: bytes | bytearray | memoryview | mmap.mmap) -> slice:
    """Where the digest is. Raises UsageError for a file without one."""
    found = re.search(_MARK, file)  # views of memory have no `find`
    if found is None:
        raise UsageError("it is no Pocketune program, or damaged: it has no seal")
    return slice(found.end(), found.end() + _DIGITS)
