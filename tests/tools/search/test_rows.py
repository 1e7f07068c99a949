"""What selects is never what is reported, and what is learned from is neither."""

from __future__ import annotations

import numpy as np
import pytest

from converter.support.errors import UsageError
from converter.tools.search.splits import Episode, Split, split


def _rows(episodes: tuple[Episode, ...]) -> list[np.ndarray]:
    return [rows for episode in episodes for rows in (episode.learned, episode.judged)]


def check(parts: Split) -> None:
    for episode in (*parts.selection, *parts.held_out):
        assert len(episode.judged)
        assert not set(episode.learned) & set(episode.judged)
    reported = {row for episode in parts.held_out for row in episode.judged}
    assert not reported & {row for e in parts.selection for row in (*e.learned, *e.judged)}


def test_rows_without_groups() -> None:
    y = np.arange(200) % 4
    parts = split(200, y, None, 40, 3)
    check(parts)
    assert len(parts.held_out[0].judged) == 50
    assert all(np.bincount(y[e.learned]).tolist() == [10] * 4 for e in (*parts.selection, *parts.held_out))
    assert len({tuple(e.learned) for e in (*parts.selection, *parts.held_out)}) == 6
    more = split(200, y, None, 40, 5)
    assert all(np.array_equal(a.learned, b.learned) for a, b in zip(parts.selection, more.selection, strict=False))


def test_groups_that_select_do_not_report() -> None:
    group = np.repeat(["a", "b", "c", "d", "e"], 30)
    parts = split(150, np.zeros((150, 2)), group, None, 4)
    check(parts)
    sides = [{*group[np.concatenate(e)]} for e in map(_rows, (parts.selection, parts.held_out))]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {*"abcde"}
    assert all(len({*group[[*e.learned, *e.judged]]}) == 1 for e in parts.selection)


@pytest.mark.parametrize(
    ("group", "samples", "seeds", "said"),
    [
        (None, None, 1, "seeds must be at least 2"),
        (None, 75, 2, "leave none"),
        (np.repeat([0, 1, 2], [40, 30, 30]), None, 2, "3 groups are too few"),
        (np.repeat(np.arange(20), 5), None, 2, "3 rows are too few to judge"),
        (np.zeros(7), None, 2, "one number or name for each of the 100 rows"),
    ],
)
def test_what_cannot_be_split(group: np.ndarray | None, samples: int | None, seeds: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        split(100, np.zeros(100, int), group, samples, seeds)
