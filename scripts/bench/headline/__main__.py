"""Time to accuracy: what a person waits for until a net is as good as full training makes it.

    scripts/pretrained
    .venv/bin/python scripts/bench/headline --json out/headline.json       # hours of one core
    .venv/bin/python scripts/bench/headline --task handwriting --choices 2 # one task, quickly

Every side trains the same Keras model from the same weights with Adam on the same choices of samples, on one core, in
a process of its own: `fit` of Keras on TensorFlow (all weights), TensorFlow's own graph of half an epoch, PyTorch, and
programs of ours. Before anything is timed, the losses of the first steps of those that train all weights are compared
with full's: one that differs by more than 1e-3 stops the measurement. The learning rate rises for a tenth of the steps,
then falls to 0 along a cosine. The clock runs from samples in memory and a program that is open (of TensorFlow and
PyTorch: a graph traced) to the first evaluation from which on held-out accuracy, its mean over the choices of samples,
stays at full's own: the mean of ours full behind all epochs, minus half its standard deviation over the choices. It
stands still while the net is judged, twice an epoch. Setting up on the phone counts: filling the cache of features,
class means. Building the program on the host does not. Each side's peak rate is the best of three on validation rows,
on average over the first choices of samples: each side has its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from arrivals import sooner, summed_up
from programs import program_of
from sides import OURS, SIDES, THEIRS
from tasks import TASKS, Task

from scripts.arguments import parser, writable
from scripts.bench.facts import checkout, machine, write

import keras  # isort: skip  after tasks, which choose its backend

HERE = Path(__file__).parent


def main() -> None:
    """Measure, print a table and write all of it."""
    options = parser(__doc__)
    options.add_argument("--task", action="append", choices=TASKS, help="only that one; repeat it for more")
    options.add_argument("--side", action="append", choices=SIDES, help="beside full only that one; repeat it for more")
    options.add_argument("--choices", type=int, default=6, help="of samples to learn from")
    options.add_argument("--epochs", type=int, help="of every training (default: the task's)")
    options.add_argument("--json", type=writable, default=Path("out/headline.json"), help="the file to write")
    asked = options.parse_args()
    commit, changed = checkout()
    result: dict[str, Any] = {"date": f"{date.today()}", "commit": commit, "changed": changed, "machine": machine()}
    result["about"] = {name: TASKS[name].about for name in asked.task or TASKS}
    rows: list[dict[str, Any]] = []
    for name in result["about"]:
        task, found = TASKS[name], list[dict[str, Any]]()
        for side in measured(task, asked.side or SIDES, asked.choices, asked.epochs or task.epochs):
            found.append(side)
            of_task = [{"task": name, **each} for each in summed_up(found)]
            write(asked.json, {**result, "rows": rows + of_task})
        rows += of_task
        print(table(name, rows), flush=True)


def measured(task: Task, sides: Any, choices: int, epochs: int) -> Iterator[dict[str, Any]]:
    """Yield what came of each side, `full` first."""
    split = task.split(choices)
    parts = {"validation": split.validation, "held_out": split.held_out}
    parts |= {f"sample_{number}": rows for number, rows in enumerate(split.samples)}
    with TemporaryDirectory() as made:
        folder = Path(made)
        arrays = {f"{part}/{axis}": array for part, rows in parts.items() for axis, array in rows._asdict().items()}
        np.savez(folder / "rows.npz", **arrays)
        settings = {"batch": task.batch, "epochs": epochs, "choices": choices, "compared": min(task.compared, choices)}
        (folder / "task.json").write_text(json.dumps(settings))
        keras.utils.set_random_seed(0)  # of a fresh head, which another run shall begin with too
        model = task.build()
        model.save(folder / "model.keras")
        for method in {OURS[side].file: OURS[side] for side in ("full", *sides) if side in OURS}.values():
            program_of(task, model, method, split, "litert-2/x86-64").write(folder / method.file)
        losses = compared([side for side in THEIRS if side in sides], task.rates["full"][0], folder)
        for side in dict.fromkeys(("full", *sides)):
            found = _run(side, _rates(task, side), folder)
            yield found | ({"losses": losses[side]} if side in losses else {})


def compared(sides: Sequence[str], rate: float, folder: Path) -> dict[str, list[float]]:
    """Return the losses of the first steps of full and of other sides.

    Raises:
        ArithmeticError: one differs from full's by more than 1e-3: it is not the same training.
    """
    losses = {side: _run(side, ("--losses", rate), folder) for side in ("full", *sides)}
    for side, found in losses.items():
        if not np.allclose(found, losses["full"], rtol=1e-3, atol=1e-3):
            raise ArithmeticError(f"the first losses of {side}, {found}, are not those of full, {losses['full']}")
    return losses


def _rates(task: Task, side: str) -> Sequence[float]:
    """Return what rates a side is tried with; where no step follows the class means there is none."""
    if side in OURS and not OURS[side].steps:
        return (0.0,)
    return task.rates[OURS[side].update if side in OURS else "full"]


def _run(side: str, rates: Sequence[float | str], folder: Path) -> Any:
    command = [sys.executable, HERE / "worker.py", folder, side, *map(str, rates)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


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
