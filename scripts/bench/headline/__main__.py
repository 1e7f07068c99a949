"""Time to accuracy: what a person waits for until a net is as good as full training makes it.

    scripts/pretrained
    .venv/bin/python scripts/bench/headline --json out/headline.json       # hours of one core
    .venv/bin/python scripts/bench/headline --task handwriting --choices 2 # one task, quickly

Every side trains the same Keras model from the same weights with Adam on the same choices of samples, on one core, in
a process of its own: `fit` of Keras on TensorFlow (all weights), TensorFlow's own graph of half an epoch, PyTorch, and
programs of ours. They take turns, choice by choice, so that what is divided by one another is of the same minutes.
Before anything is timed, the losses of the first steps of those that train all weights are compared with full's: one
that differs by more than 1e-3 stops the measurement. The learning rate rises for a tenth of the steps, then falls to 0
along a cosine. The clock runs from samples in memory and a program that is open (of TensorFlow and PyTorch: a graph
traced) to the first evaluation from which on held-out accuracy, its mean over the choices of samples, stays at full's
own: the mean of ours full behind all epochs, minus half its standard deviation over the choices. It stands still while
the net is judged, twice an epoch, and the peak of memory is of a training in which it is not. Setting up on the phone
counts: filling the cache of features, class means. Building the program on the host does not. Each side's peak rate is
the best of three on validation rows, on average over the first choices of samples: each side has its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import one_core  # isort: skip  # noqa: F401  before all that counts cores

import numpy as np
import turns
from arrivals import sooner, summed_up
from programs import program_of
from sides import OURS, SIDES, THEIRS
from tasks import TASKS, Task

from scripts.arguments import existing, parser, writable
from scripts.bench.facts import checkout, machine, write

import keras  # isort: skip  after tasks, which choose its backend


def main() -> None:
    """Measure, print a table and write all of it."""
    options = parser(__doc__)
    options.add_argument("--task", action="append", choices=TASKS, help="only that one; repeat it for more")
    options.add_argument("--side", action="append", choices=SIDES, help="beside full only that one; repeat it for more")
    options.add_argument("--choices", type=int, default=6, help="of samples to learn from")
    options.add_argument("--epochs", type=int, help="of every training (default: the task's)")
    options.add_argument("--rates", type=existing, help="what an earlier run wrote, whose learning rates are taken")
    options.add_argument("--json", type=writable, default=Path("out/headline.json"), help="the file to write")
    asked = options.parse_args()
    sides = tuple(dict.fromkeys(("full", *(asked.side or SIDES))))
    commit, changed = checkout()
    result: dict[str, Any] = {"date": f"{date.today()}", "commit": commit, "changed": changed, "machine": machine()}
    result["versions"] = {name: version(name) for name in ("keras", "tensorflow", "torch")}
    result["about"] = {name: TASKS[name].about for name in asked.task or TASKS}
    rows: list[dict[str, Any]] = []
    for name in result["about"]:
        task, of_task = TASKS[name], list[dict[str, Any]]()
        for found in measured(task, sides, asked.choices, asked.epochs or task.epochs, chosen(asked.rates, name)):
            of_task = [{"task": name, **each} for each in summed_up(found)]
            write(asked.json, {**result, "rows": rows + of_task})
        rows += of_task
        print(table(name, rows), flush=True)


def chosen(file: Path | None, task: str) -> dict[str, float]:
    """Return the learning rates that an earlier run chose for the sides of a task."""
    rows = [] if file is None else json.loads(file.read_text())["rows"]
    return {row["side"]: row["rate"] for row in rows if row["task"] == task}


def measured(
    task: Task, sides: Sequence[str], choices: int, epochs: int, chosen: Mapping[str, float]
) -> Iterator[list[dict[str, Any]]]:
    """Yield after each choice of samples what has come of the sides so far, `full` first."""
    sides = [side for side in sides if side in THEIRS or side in task.sides]
    split = task.split(choices)
    parts = {"validation": split.validation, "held_out": split.held_out}
    parts |= {f"sample_{number}": rows for number, rows in enumerate(split.samples)}
    with TemporaryDirectory() as made:
        folder = Path(made)
        arrays = {f"{part}/{axis}": array for part, rows in parts.items() for axis, array in rows._asdict().items()}
        np.savez(folder / "rows.npz", **arrays)
        (folder / "task.json").write_text(json.dumps({"batch": task.batch, "epochs": epochs}))
        keras.utils.set_random_seed(0)  # of a fresh head, which another run shall begin with too
        model = task.build()
        model.save(folder / "model.keras")
        for method in {OURS[side].file: OURS[side] for side in sides if side in OURS}.values():
            program_of(task, model, method, split, "litert-2/x86-64").write(folder / method.file)
        rates = {side: [chosen[side]] if side in chosen else _rates(task, side) for side in sides}
        alike = dict.fromkeys(("full", *THEIRS), task.rates["full"][0])
        compared = min(task.compared, choices)
        yield from turns.measured(rates, alike, folder, compared=compared, choices=choices, rounds=task.rounds)


def _rates(task: Task, side: str) -> Sequence[float]:
    """Return what rates a side is tried with; where no step follows the class means there is none."""
    if side in OURS and not OURS[side].steps:
        return (0.0,)
    return task.rates[OURS[side].update if side in OURS else "full"]


def table(task: str, rows: list[dict[str, Any]]) -> str:
    """Return the figures of a task as Markdown; against a side that never arrives its whole training counts, with >."""
    of_task = {row["side"]: row for row in rows if row["task"] == task}
    lines = [
        f"### {task}: {TASKS[task].about}; {of_task['full']['wanted']:.1%} wanted",
        "",
        "| side | rate | in the end | CPU s | wall s | sooner than Keras | than TensorFlow | than PyTorch | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for side, row in of_task.items():
        cpu, wall = row["cpu_s"], row["wall_s"]
        error = "" if row["cpu_error_s"] is None else f" ± {row['cpu_error_s']:.2g}"
        times = "not reached | –" if cpu is None else f"{cpu:.3g}{error} | {wall:.3g}"
        factors = " | ".join(sooner(cpu, of_task.get(base)) for base in THEIRS)
        reached = f"| {side} | {row['rate'] or ''} | {row['final']:.1%}"
        lines.append(f"{reached} | {times} | {factors} | {row['peak_bytes'] / 2**20:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
