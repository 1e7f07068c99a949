"""Control dependencies: the order of execution, written into the file so that delegates keep it.

When operators go to a delegate, the runtime forms partitions greedily: each takes all operators that could run by then,
however far ahead they stand, and their results wait in the arena. Control dependencies between neighbours make it keep
the order in which the operators stand, which `converter.backend.schedule` has chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Name of the metadata entry that the runtime looks for (`metadata_util.h` of TFLite).
ENTRY = "model_control_dependencies"
_VERSION = 1


def control_dependencies(operators: Iterable[int]) -> bytes:
    """Return the entry that keeps the file's order in all subgraphs, given how many operators each has."""
    chains = [[(i, i + 1) for i in range(count - 1)] for count in operators]
    out = _varint(_VERSION) + _varint(len(chains))
    for edges in chains:
        # Indices are signed numbers, which the format writes as twice their value.
        out += _varint(len(edges)) + b"".join(_varint(2 * before) + _varint(2 * after) for before, after in edges)
    return out


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
