"""What skipping learned rows gives: CPU seconds and accuracy in the end of trainings with and without it.

    scripts/pretrained
    taskset -c 0 .venv/bin/python scripts/bench/headline/skipping.py --json out/skipping.json

Tasks, choices of samples, rates and schedule are those of the headline; of `sparse` the frozen layers run once a row.
Each is trained three times: in full, with rows skipped, and for as few whole epochs as take about as many steps as the
second. The last column is the second above the third, choice by choice. Two tasks are there again with four rows beside
each sample that the net was pretrained on, so that it does not forget; half of the accuracy is then that on others of
these.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import date
from math import ceil, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sides import schedule
from tasks import TASKS, Rows, Task

import converter
from converter.runtime import SkipLearned, TrainingSession
from examples import imu
from examples.data import digits, motions
from scripts.arguments import parser, writable
from scripts.bench.facts import checkout, machine, write

import keras  # isort: skip  after examples, which choose its backend

HERE = Path(__file__).parent


#: Rows beside each sample, and how many others are judged by.
KNOWN, JUDGED = 4, 100


def _digits() -> Rows:
    return Rows(*digits.load()[0])


def _motions() -> Rows:
    return Rows(*motions.windows(motions.load()[0], imu.LENGTH, 5))


class Case(NamedTuple):
    """A task, the scheme that trains it, and rows that its net knows, where some are mixed in."""

    task: Task
    update: str = "sparse"
    known: Callable[[], Rows] | None = None


CASES = {
    "wake word": Case(TASKS["wake word"]),
    "activities": Case(TASKS["activities"]),
    "activities, all weights": Case(TASKS["activities"], "full"),
    "activities beside known rows": Case(TASKS["activities"], known=_motions),
    "handwriting": Case(TASKS["handwriting"]),
    "handwriting, all weights": Case(TASKS["handwriting"], "full"),
    "handwriting beside known rows": Case(TASKS["handwriting"], known=_digits),
}


class Run(NamedTuple):
    """What came of a training: right answers of held-out rows, steps, CPU seconds."""

    accuracy: float
    steps: int
    cpu_s: float


def main() -> None:
    """Measure, print a table and write all of it."""
    options = parser(__doc__)
    options.add_argument("--task", action="append", choices=CASES, help="only that one; repeat it for more")
    options.add_argument("--choices", type=int, default=6, help="of samples to learn from")
    options.add_argument("--epochs", type=int, default=24, help="of a whole training")
    options.add_argument("--below", type=float, default=0.03, help="rows that lost less do not come")
    options.add_argument("--revisit", type=int, default=2, help="every so many epochs all rows come")
    options.add_argument("--json", type=writable, default=Path("out/skipping.json"), help="the file to write")
    asked = options.parse_args()
    commit, changed = checkout()
    result: dict[str, Any] = {"date": f"{date.today()}", "commit": commit, "changed": changed, "machine": machine()}
    skip, rows = SkipLearned(asked.below, asked.revisit), list[dict[str, Any]]()
    result |= {"epochs": asked.epochs, "below": skip.below, "revisit": skip.revisit}
    print(
        "| task | all rows | skipping | as many steps in whole epochs | skipping above these |\n|---|---|---|---|---|"
    )
    for name in asked.task or CASES:
        rows.append({"case": name, **measured(CASES[name], asked.choices, asked.epochs, skip)})
        print(line(rows[-1]), flush=True)
        write(asked.json, {**result, "rows": rows})


class Data(NamedTuple):
    """Choices of rows to learn from, and the sets that a net is judged by, each as much as the others."""

    samples: list[Rows]
    judged: list[Rows]


def data_of(case: Case, choices: int) -> Data:
    """Return the rows of a task, with those beside them that its net knows."""
    split = case.task.split(choices)
    if case.known is None:
        return Data(split.samples, [split.held_out])
    x, y = case.known()
    order, samples = np.random.default_rng(0).permutation(len(y)), []
    for seed, own in enumerate(split.samples):
        old = np.random.default_rng(seed).choice(order[JUDGED:], KNOWN * len(own.y), replace=False)
        samples.append(Rows(np.concatenate([own.x, x[old]]), np.concatenate([own.y, y[old]])))
    return Data(samples, [split.held_out, Rows(x[order[:JUDGED]], y[order[:JUDGED]])])


def measured(case: Case, choices: int, epochs: int, skip: SkipLearned) -> dict[str, Any]:
    """Return what came of each way to train."""
    data, rate = data_of(case, choices), rate_of(case)
    keras.utils.set_random_seed(0)  # of a fresh head
    program = converter.build(
        case.task.build(),
        loss="sparse_categorical_crossentropy",
        optimizer="adam",
        update=case.update,
        batch=case.task.batch,
        target="litert-2/x86-64",
        signatures=("train", "evaluate", *(["features"] if case.update != "full" else [])),
        row_losses="on",
    )
    with TrainingSession(program.data) as session:

        def runs(epochs: int, skip: SkipLearned | None = None) -> list[Run]:
            return [trained(session, data, number, rate, epochs, skip) for number in range(choices)]

        runs(1)  # allocates
        whole, skipping = runs(epochs), runs(epochs, skip)
        per_epoch = ceil(len(data.samples[0].y) / case.task.batch)
        short = runs(max(round(np.mean([run.steps for run in skipping]) / per_epoch), 1))
    gains = [ours.accuracy - theirs.accuracy for ours, theirs in zip(skipping, short, strict=True)]
    error = float(np.std(gains, ddof=1) / sqrt(len(gains))) if len(gains) > 1 else None
    sides = {"all": summed_up(whole), "skipping": summed_up(skipping), "short": summed_up(short)}
    return {**sides, "gain": float(np.mean(gains)), "gain_error": error}


def trained(
    session: TrainingSession, data: Data, number: int, rate: float, epochs: int, skip: SkipLearned | None
) -> Run:
    """Train on a choice of rows from the first weights on."""
    session.reset()
    rows = data.samples[number]
    rates = schedule(rate, epochs * ceil(len(rows.y) / session.manifest.batch)).tolist()
    steps: list[int] = []
    before = time.process_time()
    session.fit(
        rows.x,
        rows.y,
        epochs=epochs,
        learning_rate=rates.__getitem__,
        progress=False,
        seed=number,
        skip=skip,
        listener=lambda event: steps.append(1) if type(event).__name__ == "Step" else None,
    )
    cpu = time.process_time() - before
    right = [session.evaluate(*judged)["accuracy"] for judged in data.judged]
    return Run(float(np.mean(right)), len(steps), cpu)


def rate_of(case: Case) -> float:
    """Return the rate that the headline chose on validation rows."""
    found = json.loads((HERE / "results.json").read_text())["rows"]
    return next(row["rate"] for row in found if row["task"] == case.task.name and row["side"] == case.update)


def summed_up(runs: list[Run]) -> dict[str, Any]:
    """Return means over the choices of samples, and each."""
    means = {field: float(np.mean([getattr(run, field) for run in runs])) for field in Run._fields}
    return {**means, "runs": [run._asdict() for run in runs]}


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    sides = [
        f"{row[side]['accuracy']:.1%}, {row[side]['steps']:.0f} steps, {row[side]['cpu_s'] * 1e3:.0f} ms"
        for side in ("all", "skipping", "short")
    ]
    error = "" if row["gain_error"] is None else f" ± {row['gain_error'] * 100:.1f}"
    return f"| {row['case']} | {' | '.join(sides)} | {row['gain'] * 100:+.1f}{error} |"


if __name__ == "__main__":
    main()
