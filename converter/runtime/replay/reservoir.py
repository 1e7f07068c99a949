"""Class-balanced reservoir sampling: which rows of an endless stream a bounded memory keeps.

CBRS of Chrysakis and Moens, Online Continual Learning from Imbalanced Data (ICML 2020), algorithm 1. Of one class it is
the plain reservoir of Vitter (1985): each row that came is kept with the same probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from converter.runtime.data.order import Random

#: No more rows of a class are counted.
MOST_SEEN = (1 << 31) - 1


@dataclass(frozen=True)
class Reservoir:
    """What is known of the kept rows, beside their numbers.

    Attributes:
        capacity: how many rows it has room for.
        labels: int64 [rows], the class of each.
        seen: int64 [classes], how many rows of each class came.
        full: bool [classes], which classes had the most rows at some time since there was no room left.
    """

    capacity: int
    labels: np.ndarray
    seen: np.ndarray
    full: np.ndarray

    @staticmethod
    def empty(capacity: int, classes: int) -> Reservoir:
        """Return one that nothing was offered to."""
        return Reservoir(capacity, np.zeros(0, np.int64), np.zeros(classes, np.int64), np.zeros(classes, bool))

    def without(self, label: int) -> Reservoir:
        """Return one without the rows of a class, as if none of it had come; the others are as they were."""
        kept = np.arange(len(self.seen)) != label
        return replace(self, labels=self.labels[self.labels != label], seen=self.seen * kept, full=self.full & kept)


class Sampling:
    """A reservoir that rows are offered to, one after another."""

    def __init__(self, reservoir: Reservoir) -> None:
        self._capacity = reservoir.capacity
        self._labels = reservoir.labels.tolist()
        self._seen, self._full = reservoir.seen.copy(), reservoir.full.copy()
        self._counts = np.bincount(reservoir.labels, minlength=len(self._seen))

    def offer(self, label: int, random: Random) -> int | None:
        """Return the place that a row of a class takes: that of a row that it replaces, or the next; None: it is left.

        Args:
            label: from 0.
            random: draws; how often, the reservoir and the class decide alone.
        """
        self._seen[label] = min(self._seen[label] + 1, MOST_SEEN)
        if len(self._labels) < self._capacity:
            self._labels.append(label)
            self._counts[label] += 1
            self._mark()
            return len(self._labels) - 1
        place = self._place(label, random)
        if place is not None:
            self._counts[self._labels[place]] -= 1
            self._counts[label] += 1
            self._labels[place] = label
            self._mark()
        return place

    def _place(self, label: int, random: Random) -> int | None:
        labels = np.array(self._labels)
        if self._full[label]:
            kept = np.flatnonzero(labels == label)
            if random.next_int(int(self._seen[label])) >= len(kept):
                return None
            return int(kept[random.next_int(len(kept))])
        largest = np.flatnonzero((self._counts == self._counts.max())[labels])
        return int(largest[random.next_int(len(largest))])

    def _mark(self) -> None:
        if len(self._labels) == self._capacity:
            self._full |= self._counts == self._counts.max()

    def result(self) -> Reservoir:
        """Return the reservoir after all that was offered."""
        return Reservoir(self._capacity, np.array(self._labels, np.int64), self._seen.copy(), self._full.copy())
