"""Selective backpropagation in `fit`: rows whose loss at their last visit was small are left out of most epochs.

Jiang et al., Accelerating Deep Learning by Focusing on the Biggest Losers, arXiv 1910.00762, with losses of earlier
epochs in place of a forward pass of all rows (their StaleSB), and a threshold as in TinyProp v2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.program.manifest import Manifest
from converter.support.errors import UsageError

#: The smallest and the largest loss that float32 holds.
_LEAST, _MOST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class SkipLearned:
    """Which rows a training leaves out.

    In an epoch (from 0) whose number `revisit` does not divide, and which is not the last, a row does not come whose
    loss was less than `below` when it came last. The order of the others stays, and batches are filled with them.
    Nothing corrects for those left out: between two visits of all rows a step is that of the harder ones.

    Attributes:
        below: the loss of a row, without its weight and without regularizers, with what `keep_base` adds to it; rounded
            to float32.
        revisit: all rows come in every such epoch, the first one included, and in the last.

    Raises:
        UsageError: one of them is no such number.
    """

    below: float
    revisit: int = 2

    def __post_init__(self) -> None:
        below, revisit = self.below, self.revisit
        is_number = isinstance(below, int | float | np.number) and not isinstance(below, bool)
        if not is_number or not _LEAST <= below <= _MOST:
            raise UsageError(
                f"skip: below is a loss above 0 that float32 holds, for example 0.03, not {below!r}", page="sessions"
            )
        if isinstance(revisit, bool) or not isinstance(revisit, int | np.integer) or revisit < 2:
            raise UsageError(
                f"skip: revisit is a whole number from 2 on (all rows come every so many epochs), not {revisit!r}",
                page="sessions",
            )


class Skipping:
    """The loss of each row of a training when it came last, and which rows do not come by it.

    Attributes:
        rows: how many this epoch has.
        left_out: places of the rows that do not come in this epoch, int64 [n].
    """

    def __init__(self, skip: SkipLearned, weights: np.ndarray, last: int) -> None:
        """Knows of no loss.

        Args:
            skip: which rows do not come.
            weights: of all rows, float32 [rows].
            last: the number of the last epoch.
        """
        self._below, self._revisit, self._last = np.float32(skip.below), skip.revisit, last
        self._weights, self._losses = weights, np.full(len(weights), np.nan, np.float32)
        self._penalties = np.zeros(len(weights))
        self.rows, self.left_out = 0, np.zeros(0, np.int64)

    def coming(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return of the places of an epoch's rows those that come, int64 [n]: rows that never came do."""
        come_all = epoch % self._revisit == 0 or epoch == self._last
        goes = (self._losses[places] < self._below) & (not come_all)
        self.rows, self.left_out = len(places), places[goes]
        return places[~goes]

    def see(self, places: np.ndarray, losses: np.ndarray, loss: float) -> None:
        """Take note of the losses that rows had in a step, float32 [n], and of the step's, with its penalties."""
        self._losses[places] = losses
        ran = np.isfinite(losses)
        if ran.any():
            self._penalties[places] = loss - np.average(losses[ran], weights=self._weights[places[ran]])

    def last(self) -> tuple[list[float], list[float]]:
        """Return of the rows left out what they lost when they came last, with that step's penalties, and weights."""
        losses = self._losses[self.left_out] + self._penalties[self.left_out]
        return losses.tolist(), self._weights[self.left_out].tolist()


def check_skip(skip: Any, manifest: Manifest, initial_epoch: int) -> None:
    """Raise UsageError where a training cannot skip rows.

    Args:
        skip: as `fit` is given it, not None.
        manifest: of the program.
        initial_epoch: that it begins with.
    """
    if not isinstance(skip, SkipLearned):
        raise UsageError(f"skip is a SkipLearned(below=0.03), not {type(skip).__name__}", page="sessions")
    if not manifest.calls[manifest.step].giving("row_losses"):
        raise UsageError(
            f"skip: a step of {manifest.name} does not give the loss of each row: build it with row_losses='on', on "
            "the command line --row-losses on. A saved state continues there",
            page="sessions",
        )
    if initial_epoch % skip.revisit:
        raise UsageError(
            f"skip: the losses of the epochs before initial_epoch={initial_epoch} are not known: continue with one in "
            f"which all rows come, a multiple of {skip.revisit}",
            page="sessions",
        )
