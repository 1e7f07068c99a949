"""Folding of tables: rows that are alike but for the number of a layer are one, with the range of the numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

#: A number that is a part of a name by itself: `model.layers.3.mlp`, `blocks/3/kernel`, `conv_3`.
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
#: Fewer rows are no table of layers.
_FEWEST = 3

#: Stands for the number.
_MARK = "\0"

Row = tuple[str, ...]


def fold(rows: Sequence[Row]) -> list[tuple[Row, tuple[int, ...]]]:
    """Return rows in the order of their first ones, and which of the given each stands for.

    Rows are one where their first cells differ in the first number of a name alone, and the others not at all, or in
    that same number of that same name: `model.layers.0-23.mlp.up_proj.weight`.
    """
    alike: dict[Row, list[int]] = {}
    for index, row in enumerate(rows):
        found = _NUMBER.search(row[0])
        key = row if found is None else _without(row, row[0][: found.start()], found[0])
        alike.setdefault(key, []).append(index)
    made = list[tuple[Row, tuple[int, ...]]]()
    for key, members in alike.items():
        if len(members) < _FEWEST:
            made += [(rows[i], (i,)) for i in members]
            continue
        numbers = _ranges([int(found[0]) for i in members if (found := _NUMBER.search(rows[i][0])) is not None])
        made.append((tuple(cell.replace(_MARK, numbers) for cell in key), tuple(members)))
    return sorted(made, key=lambda one: one[1][0])


def _without(row: Row, before: str, number: str) -> Row:
    """Return a row with a mark in the place of a number after some beginning of a name."""
    own = re.compile(rf"(?<![A-Za-z0-9]){re.escape(before)}{number}(?![A-Za-z0-9])")
    return tuple(own.sub(lambda found: before + _MARK, cell) for cell in row)


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as `0-3,5`."""
    found = sorted(set(numbers))
    breaks = [0, *(i for i, (a, b) in enumerate(pairwise(found), 1) if b != a + 1), len(found)]
    runs = [found[start:stop] for start, stop in pairwise(breaks)]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
