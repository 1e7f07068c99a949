"""A table of a document that a measurement fills row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class MeasuredTable:
    """A Markdown table between two marks of a document; a row that is measured again takes the place of the old one.

    Args:
        document: the file.
        begin: the mark before the table.
        end: the mark behind it.
        head: the table's first lines.
        keys: how many of a row's first cells say which one it is.
    """

    def __init__(self, document: Path, begin: str, end: str, head: Sequence[str], keys: int) -> None:
        self._document, self._begin, self._end, self._head, self._keys = document, begin, end, head, keys

    def add(self, row: str) -> None:
        """Writes a row into the document, in the order of the first cells."""
        before, rest = self._document.read_text().split(self._begin)
        table, after = rest.split(self._end)
        rows = {self._key(old): old for old in table.strip().splitlines()[len(self._head) :]} | {self._key(row): row}
        lines = [self._begin, *self._head, *(rows[key] for key in sorted(rows)), self._end]
        self._document.write_text(before + "\n".join(lines) + after)

    def _key(self, row: str) -> tuple[str, ...]:
        return tuple(row.split(" | ")[: self._keys])
