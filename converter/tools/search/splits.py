"""Data splits: rows for training, selection and report; selection and report never share rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.support.errors import UsageError

#: The share of rows of no group that is held out.
_HELD_OUT = 0.25
#: Fewer groups than this on each side say nothing of others.
_FEWEST_GROUPS = 2
#: Fewer rows than this to judge a training by are no figure.
_FEWEST_ROWS = 4


@dataclass(frozen=True)
class Episode:
    """One training: the rows it learns from, and others that judge it."""

    learned: np.ndarray
    judged: np.ndarray


@dataclass(frozen=True)
class Split:
    """The trainings of a search, one a seed.

    Attributes:
        selection: whose figures choose learning rates and schemes.
        held_out: whose figures are reported, of what was chosen already.
    """

    selection: tuple[Episode, ...]
    held_out: tuple[Episode, ...]


def split(rows: int, y: Any, group: np.ndarray | None, samples: int | None, seeds: int) -> Split:
    """Return the trainings for so many rows.

    Without groups a quarter of the rows is held out; each training learns from other samples of the rest, and those
    that select are judged on what it left. With groups (people), half of these select and half are held out, and each
    training is with one of them.

    Args:
        rows: how many there are.
        y: their targets; where these are one label a row, samples have as many of each label as they can.
        group: whose each row is.
        samples: rows that a training learns from; None: half of those that there are for it.
        seeds: how many trainings there are of each kind.

    Raises:
        UsageError: there are too few rows or groups.
    """
    if seeds < 2:
        raise UsageError(f"seeds must be at least 2, for an interval; got {seeds}", page="search")
    labels = y if isinstance(y, np.ndarray) and y.shape == (rows,) and y.dtype.kind in "iu" else np.zeros(rows, int)
    rng, everything = np.random.default_rng(0), np.arange(rows)
    if group is None:
        held_out = np.sort(_sample(everything, labels, round(_HELD_OUT * rows), rng))
        pool = np.setdiff1d(everything, held_out)
        pools, judged = [pool], [held_out]
        sides = [(pools, None), (pools, judged)]
    else:
        if group.shape != (rows,):
            raise UsageError(
                f"group: expected one number or name for each of the {rows} rows, got {list(group.shape)}",
                page="search",
            )
        names = rng.permutation(np.unique(group))
        if len(names) < 2 * _FEWEST_GROUPS:
            raise UsageError(
                f"group: {len(names)} groups are too few to select with some and report others: at least 4",
                page="search",
            )
        parts = [[np.flatnonzero(group == name) for name in half] for half in np.array_split(names, 2)]
        sides = [(parts[0], None), (parts[1], None)]
    made = [_episodes(pools, judged, labels, samples, seeds, number) for number, (pools, judged) in enumerate(sides)]
    return Split(made[0], made[1])


def _episodes(
    pools: Sequence[np.ndarray],
    judged: Sequence[np.ndarray] | None,
    labels: np.ndarray,
    samples: int | None,
    seeds: int,
    side: int,
) -> tuple[Episode, ...]:
    episodes = []
    for seed in range(seeds):
        pool = pools[seed % len(pools)]
        count = len(pool) // 2 if samples is None else samples
        if not 0 < count < len(pool):
            raise UsageError(
                f"samples: {count} of {len(pool)} rows to learn from leave none to select by", page="search"
            )
        learned = _sample(pool, labels, count, np.random.default_rng((side, seed)))
        rest = np.setdiff1d(pool, learned) if judged is None else judged[seed % len(judged)]
        if len(rest) < _FEWEST_ROWS:
            raise UsageError(
                f"{len(rest)} rows are too few to judge a training by: at least {_FEWEST_ROWS} are needed",
                page="search",
            )
        episodes.append(Episode(learned, rest))
    return tuple(episodes)


def _sample(rows: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many of the rows in random order, as many of each label as there are."""
    order = rng.permutation(rows)
    place = np.zeros(len(order), int)
    for label in np.unique(labels[order]):
        same = labels[order] == label
        place[same] = np.arange(same.sum())
    return order[np.argsort(place, kind="stable")][:count]


def take(tree: Any, rows: np.ndarray) -> Any:
    """Return some rows of an array, or of each array of a dict, list or tuple."""
    if isinstance(tree, dict):
        return {name: take(part, rows) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [take(part, rows) for part in tree]
    return tree[rows]


def count_rows(x: Any) -> int:
    """Return the rows of an array, or of the first of several."""
    while isinstance(x, dict | list | tuple):
        x = next(iter(x.values())) if isinstance(x, dict) else x[0]
    return len(x)
