"""The seal of a program file: a sha256 over every byte of it, carried inside it.

A runtime runs a file with flipped bits as if nothing were wrong, so whoever opens a program checks the seal first.
The metadata entry `pocketune.seal` is `pocketune-sha256:` and 64 hexadecimal digits: the sha256 of the file with these
digits replaced by zeros.
"""

from __future__ import annotations

import hashlib

from converter.errors import UsageError

#: Name of the metadata entry.
ENTRY = "pocketune.seal"
_MARK = b"pocketune-sha256:"
_DIGITS = 64
#: The entry before the file is sealed.
BLANK = _MARK + b"0" * _DIGITS


def seal(data: bytes) -> bytes:
    """Puts the digest of a file emitted with `BLANK` in its place."""
    start = data.index(BLANK) + len(_MARK)
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + _DIGITS :]


def check_seal(data: bytes, entry: bytes) -> None:
    """Finds any changed byte of a program file.

    Args:
        data: the file.
        entry: its metadata entry `pocketune.seal`, empty when it has none.

    Raises:
        UsageError: the file is not as it was built.
    """
    digits = entry[len(_MARK) :]
    start = data.find(entry) + len(_MARK)
    if not entry.startswith(_MARK) or len(digits) != _DIGITS:
        raise UsageError("the program has no seal: build it again")
    digest = hashlib.sha256(data[:start])
    digest.update(b"0" * _DIGITS)
    digest.update(memoryview(data)[start + _DIGITS :])
    if digest.hexdigest().encode() != digits:
        raise UsageError("the program is damaged, its seal does not match: build or copy it again")
