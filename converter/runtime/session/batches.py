"""Batches of `fit`: rows in memory in the order of each epoch, or what a stream yields, as a program takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from converter.runtime.data.examples import Examples
from converter.runtime.data.order import mixed_order
from converter.runtime.session.skipping import SkipLearned, Skipping
from converter.support.errors import UsageError


def is_stream(x: Any) -> bool:
    """Return whether x yields batches, rather than being the rows themselves (an array, or several of them)."""
    if isinstance(x, list):  # of batches, or of arrays for the inputs of a model
        return bool(x) and all(
            isinstance(batch, Mapping) or (isinstance(batch, tuple | list) and len(batch) in (2, 3)) for batch in x
        )
    return isinstance(x, Iterable) and not hasattr(x, "__array__") and not isinstance(x, Mapping | tuple | str | bytes)


def arguments_of(validation: Any) -> tuple[Any, ...]:
    """(x, y), (x, y, weight), or batches alone. Raises UsageError for anything else."""
    if is_stream(validation):
        return (validation,)
    if not isinstance(validation, list | tuple) or len(validation) not in (2, 3):
        raise UsageError(
            f"validation must be (x, y), (x, y, weight) or batches of these, got {type(validation).__name__}",
            page="sessions",
        )
    return tuple(validation)


def all_rows(source: Iterable[Any], check: Callable[..., Examples]) -> Examples:
    """Return the rows of all batches, for what needs no order; the arguments and errors are those of `Batches`."""
    if not (batches := list(_checked(source, check))):
        raise UsageError("x: there are no rows", page="sessions")
    return Examples.joined(batches)


def _checked(source: Iterable[Any], check: Callable[..., Examples]) -> Iterator[Examples]:
    for number, batch in enumerate(source):
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise UsageError(
                f"x: batch {number} is {type(batch).__name__}, and expected is (x, y) or (x, y, weight)",
                page="sessions",
            )
        try:
            rows = check(*batch)
        except UsageError as error:
            raise UsageError(f"batch {number}: {error}", page="sessions") from None
        yield rows


class Batch(NamedTuple):
    """Rows of a step.

    Attributes:
        examples: the rows.
        places: where they are among all rows in memory, int64 [rows]; of a stream none.
    """

    examples: Examples
    places: np.ndarray


class Batches:
    """Batches of a program's size out of batches of any size, again for each epoch."""

    skipping: Skipping | None = None

    def __init__(self, source: Iterable[Any], check: Callable[..., Examples], size: int, epochs: int) -> None:
        """Takes what yields (x, y) or (x, y, weight).

        Args:
            source: a list-like or iterable of batches: a generator, a tf.data.Dataset, a torch DataLoader, ...
            check: makes checked rows of x, y and weight.
            size: rows of a step.
            epochs: how often it will be gone through.

        Raises:
            UsageError: a generator, which is empty after the first time, for several epochs.
        """
        if epochs > 1 and isinstance(source, Iterator):
            raise UsageError(
                f"x: {type(source).__name__} can be gone through once, and there are {epochs} epochs: pass something "
                "that can be iterated again (a list, a Dataset, a DataLoader), or epochs=1",
                page="sessions",
            )
        self._source, self._check, self._size = source, check, size

    @property
    def per_epoch(self) -> int | None:
        """Nobody knows how many rows each batch will have."""
        return None

    def __call__(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, each of `size` rows but for the last.

        Raises UsageError for what is no batch.
        """
        waiting: Examples | None = None
        for rows in _checked(self._source, self._check):
            waiting = rows if waiting is None else Examples.joined([waiting, rows])
            while waiting.rows >= self._size:
                yield Batch(waiting.take(slice(self._size)), np.zeros(0, np.int64))
                waiting = waiting.take(slice(self._size, None))
        if waiting is not None and waiting.rows:
            yield Batch(waiting, np.zeros(0, np.int64))


class Order(NamedTuple):
    """In which order rows come.

    Attributes:
        seed: of the order of rows in memory.
        first: what is added to the number of an epoch, which the order goes by, too.
        epochs: how often a stream is gone through.
        last: the number of the last epoch.
        shuffle: whether rows in memory come in a new order each epoch, or always in their own.
    """

    seed: int
    first: int
    epochs: int
    last: int
    shuffle: bool


class Shuffled:
    """Rows in memory, in a new order each epoch, or always in their own; others may be mixed in, drawn anew each epoch.

    Attributes:
        rows: how many an epoch has.
        per_epoch: steps of an epoch.
        skipping: which rows do not come; None where all do.
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        order: Order,
        replayed: Examples | None,
        share: float,
        skip: SkipLearned | None,
    ) -> None:
        """Takes checked rows; those of weight 0 are left out. Raises UsageError when none is left.

        Args:
            examples: the rows.
            size: rows of a step.
            order: in which they come.
            replayed: rows to mix in.
            share: of these in an epoch.
            skip: which rows do not come in most epochs.
        """
        self._size, self._order = size, order
        self._rows = np.flatnonzero(examples.arrays["weight"])
        if not len(self._rows):
            raise UsageError("weight: all rows have the weight 0, there is nothing to learn from", page="sessions")
        self._examples, self._replayed = examples, np.zeros(0, np.int64)
        if replayed is not None:
            self._examples = Examples.joined([examples, replayed])
            self._replayed = examples.rows + np.flatnonzero(replayed.arrays["weight"])
        self._drawn = int(len(self._rows) * share / (1 - share) + 0.5) if len(self._replayed) else 0
        self.rows = len(self._rows) + self._drawn
        self.per_epoch: int | None = -(-self.rows // size)
        self.skipping = None if skip is None else Skipping(skip, self._examples.arrays["weight"], order.last)

    def __call__(self, epoch: int) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        seed, number, shuffle = self._order.seed, self._order.first + epoch, self._order.shuffle
        places = mixed_order(seed, number, len(self._rows), len(self._replayed), self._drawn, shuffle)
        rows = np.concatenate([self._rows, self._replayed])[places]
        if self.skipping is not None:
            rows = self.skipping.coming(epoch, rows)
        parts = (rows[start : start + self._size] for start in range(0, len(rows), self._size))
        return (Batch(self._examples.take(part), part) for part in parts)
