"""Trains a task under each update scheme and judges the result."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from tasks import Data, Task

import converter
from converter.runtime import TrainingSession

OPTIMIZER = "adam"
#: Schemes that leave the first layers as they are.
FROZEN_BELOW = ("sparse", "head")
HELD_OUT, VALIDATION = 600, 200
#: Steps whose CPU time is measured, after one that is not.
TIMED = 6


class Judge:
    """A task with its model and its rows."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._held_out, self._validation, self._samples = task.split(HELD_OUT, VALIDATION)
        self._model = task.build()

    @property
    def setting(self) -> dict[str, Any]:
        """What all schemes share."""
        return {
            "model": self._task.model,
            "data": self._task.data,
            "samples": len(self._samples[0].y),
            "choices": len(self._samples),
            "validation": VALIDATION,
            "held_out": HELD_OUT,
            "batch": self._task.batch,
            "epochs": self._task.epochs,
            "optimizer": OPTIMIZER,
        }

    def figures(self, scheme: str) -> dict[str, Any]:
        """What a scheme reaches, and what it costs."""
        program = converter.build(
            self._model,
            optimizer=OPTIMIZER,
            update=scheme,
            batch=self._task.batch,
            # First layers that are frozen run once a sample.
            signatures=("train", "evaluate", *(["features"] if scheme in FROZEN_BELOW else [])),
        )
        with TrainingSession(program.data) as session:
            before = session.evaluate(*self._held_out)["accuracy"]
            # Accuracy, and between rates of the same accuracy, the loss.
            validation: dict[float, tuple[float, float]] = {}
            for tried in self._task.rates[scheme]:
                self._train(session, self._samples[0], tried)
                reached = session.evaluate(*self._validation)
                validation[tried] = reached["accuracy"], -reached["loss"]
                if validation[tried] == max(validation.values()):
                    rate, after = tried, [session.evaluate(*self._held_out)["accuracy"]]
            for sample in self._samples[1:]:
                self._train(session, sample, rate)
                after.append(session.evaluate(*self._held_out)["accuracy"])
            seconds = self._step_seconds(session)
        print(f"{self._task.name} {scheme}: {before:.1%} -> {after} at {rate:g} of {validation}", file=sys.stderr)
        return {
            "before": before,
            "after": after,
            "rate": rate,
            "rates": list(self._task.rates[scheme]),
            "step_seconds": seconds,
        } | {key: program.costs[key] for key in ("trained_parameters", "arena_bytes", "state_bytes")}

    def _train(self, session: TrainingSession, sample: Data, rate: float) -> None:
        session.reset()
        session.fit(*sample, epochs=self._task.epochs, learning_rate=rate, progress=False, seed=0)

    def _step_seconds(self, session: TrainingSession) -> float:
        """CPU time of a step on inputs, without cached features."""
        x, y = (part[: self._task.batch] for part in self._samples[0])
        seconds = []
        for _ in range(1 + TIMED):
            started = time.process_time()
            session.train(x, y, learning_rate=0.0)
            seconds.append(time.process_time() - started)
        return float(np.median(seconds[1:]))
