"""Training loop of `TrainingSession.fit`: epochs over batches, events, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.runtime.data.examples import Examples
from converter.runtime.session.batches import Batches, Shuffled
from converter.runtime.session.progress import progress_bar
from converter.runtime.session.running import Taken
from converter.support.errors import UsageError


@dataclass(frozen=True)
class Started:
    """Everything that is known before the first step is checked.

    Attributes:
        epochs: how many are planned.
        steps: to be done if all rows come; None where the data does not say how much it is.
    """

    epochs: int
    steps: int | None


@dataclass(frozen=True)
class Skipped:
    """An epoch begins in which rows do not come, as they lost little when they came last.

    Attributes:
        epoch: from 0.
        rows: how many do not come.
        of: so many that the epoch has.
    """

    epoch: int
    rows: int
    of: int


@dataclass(frozen=True)
class Step:
    """One step is done.

    Attributes:
        epoch: from 0.
        step: from 0, over all epochs; where rows are skipped, each epoch begins with the number that it would have if
            all came.
        loss: before the step's update.
        seconds: how long the step took.
        weight: of its rows, added up: the loss of an epoch in which all rows come is the mean by it.
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
        figures: what the history says of it: `loss`, `seconds`, with validation `validation_loss`, ..., and where rows
            are skipped `skipped`.
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


Event = Started | Skipped | Step | Evaluated | Drifted | Finished
#: Told of each event; False ends the training after it.
Listener = Callable[[Event], Any]


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


@dataclass
class Loop:
    """One training.

    Attributes:
        batches: of an epoch by its number.
        epochs: how many there are.
        first: the epoch that it begins with, from 0.
        begin: called at the beginning of each epoch, with its number.
        step: trains on a batch with a learning rate.
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
    begin: Callable[[int], None]
    step: Callable[[Examples, float], Taken]
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
                self.begin(epoch)
                figures, number = self._epoch(epoch, number, advance)
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

    def _epoch(self, epoch: int, number: int, advance: Callable[[str, int], None]) -> tuple[dict[str, float], int]:
        """Run the steps of an epoch, the first of a number; return its figures and the number of the next one."""
        started, losses, weights = time.perf_counter(), list[float](), list[float]()
        batches, skipping = self.batches(epoch), self.batches.skipping
        if skipping is not None and len(skipping.left_out):
            self._tell(Skipped(epoch, len(skipping.left_out), skipping.rows))
        for batch, places in batches:
            if not batch.weight:
                continue
            before = time.perf_counter()
            taken = self.step(batch, self.rate(number))
            if skipping is not None:
                skipping.see(places, taken.rows, taken.loss)
            losses.append(taken.loss)
            weights.append(batch.weight)
            advance(f"epoch {epoch + 1}/{self.epochs}  loss {taken.loss:.4f}", 1)
            self._tell(Step(epoch, number, taken.loss, time.perf_counter() - before, weights[-1]))
            number += 1
        figures = {"seconds": time.perf_counter() - started}
        if skipping is not None and self.batches.per_epoch is not None:
            figures["skipped"] = float(len(skipping.left_out))
            losses, weights = (own + rest for own, rest in zip((losses, weights), skipping.last(), strict=True))
            end = (epoch + 1) * self.batches.per_epoch
            advance(f"epoch {epoch + 1}/{self.epochs}", end - number)
            number = end
        if not losses:
            raise UsageError("x: there are no rows to learn from", page="sessions")
        return {"loss": float(np.average(losses, weights=weights)), **figures}, number

    def _tell(self, event: Event) -> None:
        if self.listener is not None and self.listener(event) is False:
            raise _Stop


class _Stop(Exception):
    """The listener has had enough."""
