"""A class that comes at run time: five samples and no gradient, beside a head that is trained again.

    scripts/pretrained
    .venv/bin/python scripts/bench/classes --json out/classes.json          # four tasks, minutes of one core
    .venv/bin/python scripts/bench/classes --task voices --choices 1 --jvm  # one task, and the same on a JVM

Each program knows its own classes; each class in turn is the one that comes, with several choices of five samples. The
head that it is compared with, and the file's own one, are scikit-learn's logistic regression on the same features (the
signature `features` in the stock interpreter), trained to convergence, their regularization chosen by cross-validation
on the samples of the own classes of the first case. All is judged on held-out rows. Errors are standard errors of the
mean over the classes that come, each the mean of its choices. `--jvm` has the Kotlin trainer do the first case of each
task in TFLite's official Android library.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from adding import Problem, RememberingSession, compared, looseness, problem, program_of
from class_tasks import TASKS, Case, Rows, Task
from on_jvm import same_on_jvm

from scripts.arguments import parser, writable
from scripts.bench.facts import checkout, machine, write

#: Samples of the class that comes.
FEW = 5
METHODS = ("means", "discriminant")


def main() -> None:
    """Measure, print a table and write all of it."""
    options = parser(__doc__)
    options.add_argument("--task", action="append", choices=TASKS, help="only that one; repeat it for more")
    options.add_argument("--choices", type=int, default=5, help="of samples, for each class that comes")
    options.add_argument("--jvm", action="store_true", help="repeat the first case of each task in Kotlin on a JVM")
    options.add_argument("--json", type=writable, default=Path("out/classes.json"), help="the file to write")
    asked = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name in asked.task or TASKS:
        rows += measured(TASKS[name], asked.choices, asked.jvm)
        print(table(rows[-len(METHODS) :], TASKS[name]), flush=True)
        commit, changed = checkout()
        made = {"date": f"{date.today()}", "commit": commit, "changed": changed, "machine": machine(), "few": FEW}
        write(asked.json, {**made, "choices": asked.choices, "rows": rows})


def measured(task: Task, choices: int, jvm: bool) -> list[dict[str, Any]]:
    """Return a row for each method."""
    samples, held_out = task.load()
    of_case: list[dict[str, np.ndarray]] = []
    loose, agree = 0.0, None
    for case, session, program in _opened(task):
        made = [
            problem(samples, held_out, case.own, case.added, task.of_each, FEW, seed=100 * case.added + choice)
            for choice in range(choices)
        ]
        loose = loose or looseness(session, made[0].own)
        if not of_case:
            _check(session, made[0])
            agree = same_on_jvm(program, made[0]) if jvm else None
        found = [compared(session, each, loose) for each in made]
        of_case.append({name: np.mean([each[name] for each in found], 0) for name in found[0]})
    return [summed_up(task, method, of_case, len(case.own), loose, agree) for method in METHODS]


def _opened(task: Task) -> Iterator[tuple[Case, RememberingSession, bytes]]:
    """Yield each case with a session, one for all cases of a model."""
    model, session, program = None, None, b""
    for case in task.cases():
        if session is None or case.model is not model:
            if session is not None:
                session.close()
            model, program = case.model, program_of(case.model, len(case.own))
            session = RememberingSession(program)
        yield case, session, program
    if session is not None:
        session.close()


def _check(session: RememberingSession, given: Problem) -> None:
    """Raise RuntimeError where the head by features does not answer as the whole program does."""
    session.reset()
    session.set_class_means(given.own.x, given.own.y)
    few = Rows(given.held_out.x[:64], given.held_out.y[:64])
    whole = float((session.infer(few.x).argmax(1) == few.y).mean())
    if abs(session.right(few, int(given.own.y.max()) + 1).all - whole) > 1e-9:
        raise RuntimeError("the head on kept features answers otherwise than the program")


def summed_up(
    task: Task, method: str, of_case: list[dict[str, np.ndarray]], own: int, loose: float, agree: int | None
) -> dict[str, Any]:
    """Return the figures of a method over all classes that come: in percent, and points with their standard errors."""

    def of(name: str, part: int) -> np.ndarray:
        return 100 * np.array([each[name][part] for each in of_case])

    def said(values: np.ndarray) -> dict[str, float]:
        return {"mean": float(values.mean()), "error": float(values.std(ddof=1) / np.sqrt(len(values)))}

    after = f"{method} + few"
    return {
        "task": task.name,
        "method": method,
        "own_classes": own,
        "classes_that_come": len(of_case),
        "samples_of_each": task.of_each,
        "C": loose,
        "trained_own": said(of("trained", 0)),
        "own_before": said(of(method, 0)),
        "own_after": said(of(after, 0)),
        "added": said(of(after, 1)),
        "all": said(of(after, 2)),
        "retrained_own": said(of("retrained", 0)),
        "retrained_added": said(of("retrained", 1)),
        "retrained_all": said(of("retrained", 2)),
        "all_less_retrained": said(of(after, 2) - of("retrained", 2)),
        "own_less_before": said(of(after, 0) - of(method, 0)),
        "own_less_trained": said(of(after, 0) - of("trained", 0)),
        "same_answers_on_jvm": agree,
    }


def table(rows: list[dict[str, Any]], task: Task) -> str:
    """Return the figures of a task as Markdown."""
    first = rows[0]
    classes = f"{first['own_classes']} own classes, {first['samples_of_each']} samples of each"
    classes += f"; {first['classes_that_come']} classes that come"
    lines = [
        f"### {task.name}: {task.about}",
        "",
        classes,
        "",
        "| method | own: trained head | own: before | own: after | added | all | all, retrained | points | own lost |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = [f"{row[name]['mean']:.1f}%" for name in ("trained_own", "own_before", "own_after", "added", "all")]
        points, lost = row["all_less_retrained"], row["own_less_before"]
        lines.append(
            f"| {row['method']} | {' | '.join(figures)} | {row['retrained_all']['mean']:.1f}% "
            f"| {points['mean']:+.1f} ± {points['error']:.1f} | {-lost['mean']:.1f} ± {lost['error']:.1f} |"
        )
    if (agree := rows[0]["same_answers_on_jvm"]) is not None:
        lines += ["", f"The Kotlin trainer gives the same answer for all of {agree} held-out rows, by either method."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
