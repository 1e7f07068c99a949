"""What the update schemes reach with real weights on real data, trained in the stock runtime.

    scripts/pretrained
    .venv/bin/python scripts/bench/accuracy         # 15 minutes of one core

Every scheme of a task starts from the same weights and sees the same samples. Its learning rate is the one of a few
that does best on validation rows with the first samples; with it, the net learns each of several choices of samples
and is judged on rows that nothing was chosen with. The figures go into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from document import document
from tasks import TASKS, Data, Task

import converter
from converter.runtime import TrainingSession

ROOT = Path(__file__).resolve().parents[3]
OPTIMIZER = "adam"
#: Schemes that leave the first layers as they are.
FROZEN_BELOW = ("sparse", "head")
HELD_OUT, VALIDATION = 600, 200
#: Steps whose CPU time is measured, after one that is not.
TIMED = 6


def main() -> None:
    """Trains, and writes the figures and the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, schemes = [task.name for task in TASKS], list(TASKS[0].rates)
    parser.add_argument("--tasks", nargs="+", choices=names, default=names)
    parser.add_argument("--schemes", nargs="+", choices=schemes, default=schemes)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "out" / "accuracy.json", help="the figures; what is not made anew stays"
    )
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "accuracy.md")
    arguments = parser.parse_args()
    file: Path = arguments.json
    results = json.loads(file.read_text()) if file.exists() else {}
    for task in (task for task in TASKS if task.name in arguments.tasks):
        judge = Judge(task)
        kept = results.get(task.name, {}).get("schemes", {})
        made = {scheme: judge.figures(scheme) for scheme in task.rates if scheme in arguments.schemes}
        # In the order of the table.
        results[task.name] = judge.setting | {"schemes": {s: (kept | made)[s] for s in task.rates if s in kept | made}}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2) + "\n")
    arguments.document.write_text(document(results))


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
            validation, first = {}, {}
            for rate in self._task.rates[scheme]:
                self._train(session, self._samples[0], rate)
                validation[rate] = session.evaluate(*self._validation)["accuracy"]
                first[rate] = session.evaluate(*self._held_out)["accuracy"]
            rate = max(validation, key=validation.__getitem__)
            after = [first[rate]]
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


if __name__ == "__main__":
    main()
