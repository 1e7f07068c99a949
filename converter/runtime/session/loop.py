"""Training loop of `TrainingSession.fit`: epochs over batches, events, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from converter.runtime.data.examples import Examples
from converter.runtime.data.order import mixed_order
from converter.runtime.session.progress import progress_bar
from converter.support.errors import UsageError


@dataclass(frozen=True)
class Started:
    """Everything that is known before the first step is checked.

    Attributes:
        epochs: how many are planned.
        steps: to be done; None where the data does not say how much it is.
    """

    epochs: int
    steps: int | None


@dataclass(frozen=True)
class Step:
    """One step is done.

    Attributes:
        epoch: from 0.
        step: from 0, over all epochs.
        loss: before the step's update.
        seconds: how long the step took.
        weight: of its rows, added up: the loss of an epoch is the mean by it.
    """

    epoch: int
    step: int
    loss: float
    seconds: float
    weight: float


@dataclass(frozen=True)
class Evaluated:
    """An epoch is done.

    Attributes:
        epoch: from 0.
        figures: what the history says of it: `loss`, `seconds`, and with validation `validation_loss`, ...
        is_best: no earlier epoch had a lower loss, by the validation rows where there are some.
    """

    epoch: int
    figures: Mapping[str, float]
    is_best: bool


@dataclass(frozen=True)
class Drifted:
    """The loss on the rows that a memory keeps aside rose over a training: something was forgotten, or changed.

    Attributes:
        before: the mean loss on them before the training.
        after: after it.
        rolled_back: whether the state is that from before the training.
    """

    before: float
    after: float
    rolled_back: bool


@dataclass(frozen=True)
class Finished:
    """The end.

    Attributes:
        epochs: how many were completed.
        stopped_early: by the listener, or because the loss no longer fell.
    """

    epochs: int
    stopped_early: bool


Event = Started | Step | Evaluated | Drifted | Finished
#: Told of each event; False ends the training after it.
Listener = Callable[[Event], Any]


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


def check_arguments(epochs: Any, initial_epoch: Any, patience: Any, seed: Any, listener: Any) -> None:
    """Raises UsageError for what is no number of epochs, no seed, or no listener."""
    numbers = {"epochs": (epochs, 1), "initial_epoch": (initial_epoch, 0), "patience": (patience, 1), "seed": (seed, 0)}
    for name, (number, least) in numbers.items():
        if number is not None and (not isinstance(number, int | np.integer) or number < least):
            raise UsageError(f"{name} must be a whole number from {least} on, got {number!r}", page="sessions")
    if listener is not None and not callable(listener):
        raise UsageError(f"listener must be a function of an event, got {listener!r}", page="sessions")
    if initial_epoch >= epochs:
        raise UsageError(
            f"initial_epoch {initial_epoch}: all of the {epochs} epochs are done, there is nothing to go on",
            page="sessions",
        )


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


class Batches:
    """Batches of a program's size out of batches of any size, again for each epoch."""

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

    def __call__(self, epoch: int) -> Iterator[Examples]:
        """Yield the batches of an epoch, each of `size` rows but for the last.

        Raises UsageError for what is no batch.
        """
        waiting: Examples | None = None
        for rows in _checked(self._source, self._check):
            waiting = rows if waiting is None else Examples.joined([waiting, rows])
            while waiting.rows >= self._size:
                yield waiting.take(slice(self._size))
                waiting = waiting.take(slice(self._size, None))
        if waiting is not None and waiting.rows:
            yield waiting


class Order(NamedTuple):
    """In which order rows come.

    Attributes:
        seed: of the order of rows in memory.
        first: what is added to the number of an epoch, which the order goes by, too.
        epochs: how often a stream is gone through.
        shuffle: whether rows in memory come in a new order each epoch, or always in their own.
    """

    seed: int
    first: int
    epochs: int
    shuffle: bool


class Shuffled:
    """Rows in memory, in a new order each epoch, or always in their own; others may be mixed in, drawn anew each epoch.

    Attributes:
        rows: how many an epoch has.
        per_epoch: steps of an epoch.
        begun: epochs that were begun.
    """

    def __init__(self, examples: Examples, size: int, order: Order, replayed: Examples | None, share: float) -> None:
        """Takes checked rows; those of weight 0 are left out. Raises UsageError when none is left.

        Args:
            examples: the rows.
            size: rows of a step.
            order: in which they come.
            replayed: rows to mix in.
            share: of these in an epoch.
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
        self.begun = 0

    def __call__(self, epoch: int) -> Iterator[Examples]:
        """Return the batches of an epoch."""
        self.begun = epoch + 1
        seed, number, shuffle = self._order.seed, self._order.first + epoch, self._order.shuffle
        places = mixed_order(seed, number, len(self._rows), len(self._replayed), self._drawn, shuffle)
        rows = np.concatenate([self._rows, self._replayed])[places]
        return (self._examples.take(rows[i : i + self._size]) for i in range(0, len(rows), self._size))


@dataclass
class Loop:
    """One training.

    Attributes:
        batches: of an epoch by its number.
        epochs: how many there are.
        first: the epoch that it begins with, from 0.
        step: trains on a batch with a learning rate; returns the loss.
        rate: the learning rate by the number of the step.
        validate: figures on held-out rows; None without any.
        best: called after the best epoch so far, and `back` at the end when others came after it, where `patience` is
            given.
        settle: called at the end, for what is to be told of all of it.
        patience: epochs without a lower loss before it ends.
        listener: told of everything.
        progress: whether who looks at a terminal sees it.
    """

    batches: Batches | Shuffled
    epochs: int
    first: int
    step: Callable[[Examples, float], float]
    rate: Callable[[int], float]
    validate: Callable[[], dict[str, float]] | None
    best: Callable[[], None]
    back: Callable[[], None]
    settle: Callable[[], Event | None]
    patience: int | None
    listener: Listener | None
    progress: bool

    @property
    def steps(self) -> int | None:
        """How many are to be done; None where the data does not say."""
        return None if self.batches.per_epoch is None else self.batches.per_epoch * (self.epochs - self.first)

    def run(self) -> dict[str, list[float]]:
        """Return the history: one number an epoch that was completed, by name."""
        history: dict[str, list[float]] = {}
        lowest, lowest_at, number = float("inf"), -1, self.first * (self.batches.per_epoch or 0)
        with suppress(_Stop), progress_bar(self.steps, self.progress) as advance:
            self._tell(Started(self.epochs, self.steps))
            for epoch in range(self.first, self.epochs):
                started, losses, weights = time.perf_counter(), [], []
                for batch in self.batches(epoch):
                    if not batch.weight:
                        continue
                    before = time.perf_counter()
                    losses.append(self.step(batch, self.rate(number)))
                    weights.append(batch.weight)
                    advance(f"epoch {epoch + 1}/{self.epochs}  loss {losses[-1]:.4f}")
                    self._tell(Step(epoch, number, losses[-1], time.perf_counter() - before, weights[-1]))
                    number += 1
                if not losses:
                    raise UsageError("x: there are no rows to learn from", page="sessions")
                figures = {"loss": float(np.average(losses, weights=weights)), "seconds": time.perf_counter() - started}
                if self.validate is not None:
                    figures |= {f"validation_{name}": value for name, value in self.validate().items()}
                for name, value in figures.items():
                    history.setdefault(name, []).append(value)
                loss = figures.get("validation_loss", figures["loss"])
                if loss < lowest:
                    lowest, lowest_at = loss, epoch
                    if self.patience is not None:
                        self.best()
                self._tell(Evaluated(epoch, figures, lowest_at == epoch))
                if self.patience is not None and epoch - lowest_at >= self.patience:
                    break
        completed = len(history.get("loss", []))
        if self.patience is not None and 0 <= lowest_at < self.first + completed - 1:
            self.back()
        told = self.settle()
        if self.listener is not None:
            if told is not None:
                self.listener(told)
            self.listener(Finished(completed, stopped_early=completed < self.epochs - self.first))
        return history

    def _tell(self, event: Event) -> None:
        if self.listener is not None and self.listener(event) is False:
            raise _Stop


class _Stop(Exception):
    """The listener has had enough."""
