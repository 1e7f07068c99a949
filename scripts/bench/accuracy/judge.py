"""Trains a task under each update scheme and judges the result."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import numpy as np
import optax
from journal import Journal
from tasks import Data, Task

import converter
from converter.runtime import TrainingSession
from converter.support.errors import NumericError

OPTIMIZER = "adam"
#: Of the machine that this runs on: what is learned does not depend on it, how long that takes does.
TARGET = "litert-2/x86-64"
#: Schemes that leave the first layers as they are.
FROZEN_BELOW = ("sparse", "head", "skip-lora-8")
#: The share of the steps in which the learning rate rises to what is given; then it falls to 0 along a cosine.
WARM_UP = 0.1
#: At least so many steps are timed, for so many seconds of CPU time, after one that is not.
TIMED, TIMED_SECONDS = 6, 1.0


class Judge:
    """A task with its model and its rows, and what is known of it already."""

    def __init__(self, task: Task, journal: Journal) -> None:
        self._task, self._journal = task, journal
        self._held_out, self._validation, self._samples = task.split()
        self._model = task.build()

    @property
    def setting(self) -> dict[str, Any]:
        """What all schemes share."""
        return {
            "model": self._task.model,
            "data": self._task.data,
            "samples": len(self._samples[0].y),
            "validation": self._task.validation,
            "held_out": self._task.held_out,
            "compared": self._task.compared,
            "judged_apart": self._task.judged_separately,
            "batch": self._task.batch,
            "epochs": self._task.epochs,
            "optimizer": OPTIMIZER,
            "warm_up": WARM_UP,
            "target": TARGET,
        }

    def figures(self, scheme: str) -> dict[str, Any]:
        """Return what a scheme reaches, and what it costs."""
        trainer = _Trainer(self._model, self._task, scheme)
        asked = {"task": self._task.name, "scheme": scheme} | self.setting
        costs = self._journal.once(asked, lambda: trainer.costs(self._samples[0], self._held_out[0]))
        rates = self._search(trainer, asked)
        rate = _best(rates)
        return costs | {
            "after": [self._judged(trainer, asked, choice, rate) for choice in range(len(self._samples))],
            "rate": rate,
            "rates": {rate: rates[rate][0] for rate in sorted(rates)},
        }

    def _search(self, trainer: _Trainer, asked: dict[str, Any]) -> dict[float, tuple[float, float]]:
        """Return what comes of learning rates, two a decade, up to one on either side of the best."""
        place = round(2 * np.log10(self._task.rates[trainer.scheme]))
        tried: dict[float, tuple[float, float]] = {}
        while missing := [rate for rate in map(_rate, (place, place + 1, place - 1)) if rate not in tried]:
            found = [self._validated(trainer, asked, choice, missing[0]) for choice in range(self._task.compared)]
            tried[missing[0]] = tuple(np.mean([(each["accuracy"], -each["loss"]) for each in found], 0).tolist())
            place = round(2 * np.log10(_best(tried)))
        return tried

    def _validated(self, trainer: _Trainer, asked: dict[str, Any], choice: int, rate: float) -> dict[str, Any]:
        """Return what the validation rows say of a training."""

        def learn() -> dict[str, Any]:
            try:
                trainer.train(self._samples[choice], rate)
                return trainer.session.evaluate(*self._validation)
            except NumericError:  # the rate is too high
                return {"accuracy": 0.0, "loss": np.inf}

        return self._journal.once(asked | {"choice": choice, "rate": rate, "rows": "validation"}, learn)

    def _judged(self, trainer: _Trainer, asked: dict[str, Any], choice: int, rate: float) -> float:
        """Return the accuracy of a training on the rows that chose nothing."""

        def learn() -> dict[str, Any]:
            trainer.train(self._samples[choice], rate)
            return {"after": trainer.accuracy(self._held_out[choice])}

        return self._journal.once(asked | {"choice": choice, "rate": rate, "rows": "held out"}, learn)["after"]


def _best(rates: dict[float, tuple[float, float]]) -> float:
    """Of the rates that with the best accuracy on the validation rows; between the same, with the smallest loss."""
    return max(rates, key=rates.__getitem__)


def _rate(place: int) -> float:
    """..., 1e-4, 3e-4, 1e-3, 3e-3, ..."""
    return float(f"{10 ** (place / 2):.0e}")


class _Trainer:
    """A model under an update scheme, built when there is something to train."""

    def __init__(self, model: Any, task: Task, scheme: str) -> None:
        self._model, self._task, self.scheme = model, task, scheme
        self._cached = task.cached and scheme in FROZEN_BELOW

    @cached_property
    def _program(self) -> converter.Program:
        return converter.build(
            self._model,
            loss=self._task.loss,
            optimizer=OPTIMIZER,
            update=self.scheme,
            batch=self._task.batch,
            target=TARGET,
            # First layers that are frozen run once a sample.
            signatures=("train", "evaluate", *(["features"] if self._cached else [])),
        )

    @cached_property
    def session(self) -> TrainingSession:
        return TrainingSession(self._program.data)

    def costs(self, sample: Data, held_out: Data) -> dict[str, Any]:
        """Return what the scheme costs, and the accuracy before anything is learned."""
        known = {key: self._program.costs[key] for key in ("trained_parameters", "arena_bytes", "state_bytes")}
        return {"before": self.accuracy(held_out), "step_seconds": self._step_seconds(sample)} | known

    def accuracy(self, held_out: Data) -> float:
        """Evaluate on the rows that are judged on, as the weights are now."""
        return self.session.evaluate(*held_out)["accuracy"]

    def train(self, sample: Data, rate: float) -> None:
        """Train from the first weights on, with all epochs."""
        steps = -(-len(sample.y) // self._task.batch) * self._task.epochs
        rising = max(round(WARM_UP * steps), 1)
        schedule = optax.warmup_cosine_decay_schedule(rate / rising, rate, rising, steps)
        self.session.reset()
        self.session.fit(
            *sample,
            epochs=self._task.epochs,
            learning_rate=lambda step: float(schedule(step)),
            progress=False,
            seed=0,
        )

    def _step_seconds(self, sample: Data) -> float:
        """Return the least CPU time of a step on inputs, without cached features: what else runs only adds to it."""
        x, y = (part[: self._task.batch] for part in sample)
        seconds: list[float] = []
        begun = time.process_time()
        while len(seconds) <= TIMED or time.process_time() - begun < TIMED_SECONDS:
            started = time.process_time()
            self.session.train(x, y, learning_rate=0.0)
            seconds.append(time.process_time() - started)
        return min(seconds[1:])
