"""Names of classes as a tensor of the state, int32 [classes, 16], and the bias of a class that there is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from converter.support.errors import UsageError

#: The tensor, which only programs with room for classes have.
TENSOR = "classes/names"
#: Numbers of a row, and bytes of a name at most.
WORDS, BYTES = 16, 60
#: The highest bias of a class that there is not: its share of a softmax is 0 exactly in float32, as is every gradient.
FREE = -30000.0
#: So many times the lowest of the others it is at least: then no row that is up to seven times as long as the longest
#: class mean names a free class, whatever its direction.
_BELOW = 16


def free_bias(others: np.ndarray) -> float:
    """Return the bias of classes that there are not, beside those of the others."""
    return min(FREE, _BELOW * float(np.min(others, initial=0)))


def encoded(name: str) -> bytes:
    """Return a name in UTF-8.

    Raises:
        UsageError: it holds half a character, as JSON or a file's name may bring one: UTF-8 has none.
    """
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of a class is a text in UTF-8, which has no half characters: {name!r} holds one", page="sessions"
        ) from None


def written(names: Sequence[str]) -> np.ndarray:
    """Return names as they are stored, int32 [classes, 16]; an empty one is of no class.

    Raises:
        UsageError: one takes more bytes than there is room for, or holds half a character.
    """
    rows = np.zeros((len(names), 4 * WORDS), np.uint8)
    for row, name in zip(rows, names, strict=True):
        data = encoded(name)
        if len(data) > BYTES:
            raise UsageError(
                f"the name of a class takes at most {BYTES} bytes in UTF-8, and {name!r} takes {len(data)}",
                page="sessions",
            )
        row[0] = len(data)
        row[4 : 4 + len(data)] = np.frombuffer(data, np.uint8)
    return rows.view("<i4").astype(np.int32)


def read(tensor: np.ndarray) -> list[str]:
    """Return the names in a tensor of the state, empty ones of no class.

    Raises:
        UsageError: these are no names: the tensor may be anybody's.
    """
    rows = np.ascontiguousarray(tensor, "<i4").view(np.uint8)
    try:
        if (tensor[:, 0] < 0).any() or (tensor[:, 0] > BYTES).any():
            raise ValueError
        return [row[4 : 4 + row[0]].tobytes().decode() for row in rows]
    except ValueError:
        raise UsageError(
            "the state's names of classes are damaged: reset() or restore another", page="state-files"
        ) from None
