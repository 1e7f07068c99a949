"""How well steps are foreseen on this machine from those of a few schemes: what `pocketune search --measure` does.

    .venv/bin/python scripts/bench/clocked.py
    .venv/bin/python scripts/bench/clocked.py examples.imu:build examples.efficientnet_lite:build --drawn 6

Two factors are fitted to the steps of the named schemes. Others, each of the head and one to three parts drawn at
random, are measured too, and nothing is fitted to them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import converter
from converter.cli.resolve import job_of
from converter.driver.models import import_model
from converter.program.synthetic import synthetic_inputs, synthetic_targets
from converter.tools.search.clock import fitted
from converter.tools.search.evaluator import Evaluator, SearchJournal
from converter.tools.search.rate_schedule import RateSchedule
from converter.tools.search.run import COMPARED
from converter.tools.search.space import Update, read_space
from converter.tools.search.splits import split
from converter.tools.search.subject import Subject
from converter.tools.search.workers import Inline

TARGET, BATCH = "litert-2/x86-64", 8
#: Of the weights of the schemes that are drawn.
RATIOS = (0.25, 1.0)


def main() -> None:
    """Measures the models one after the other, and prints a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["digits-cnn", "examples.imu:build"])
    parser.add_argument("--drawn", type=int, default=10, help="schemes that nothing is fitted to")
    parser.add_argument("--table", default=TARGET)
    options = parser.parse_args()
    for model in options.models:
        Console(width=120).print(_judged(model, options.drawn, options.table))


def _judged(model: str, drawn: int, table: str) -> Table:
    source = import_model(job_of(None, False, model=model).model(), BATCH)
    options = {"optimizer": "adam", "batch": BATCH, "target": table, "signatures": ("train",)}
    evaluator = Evaluator(Inline(_subject(source, options)), SearchJournal(None, {}))
    found = zip(COMPARED, evaluator.costs(COMPARED), strict=True)
    by_table = {name: each["costs"] for name, each in found if "costs" in each}
    steps = evaluator.steps([*by_table])
    clock = fitted([*by_table.values()], steps)
    title = (
        f"{model}: factors {clock.products:.2f} of products, {clock.rest:.2f} of the rest; the steps fitted to, others"
    )
    shown = Table("scheme", "by the table, ms", "foreseen, ms", "measured, ms", "off by", title=title)
    others = _drawn(source, drawn)
    costs = [each["costs"] for each in evaluator.costs(others.values())]
    rows = [*zip(by_table, by_table.values(), steps, strict=True)]
    rows += [*zip(others, costs, evaluator.steps(others.values()), strict=True)]
    for number, (name, cost, step) in enumerate(rows, 1):
        foreseen = clock.corrected(cost)["step_cost"]
        figures = (f"{each / 1e6:.3f}" for each in (cost["step_cost"], foreseen, step))
        shown.add_row(name, *figures, f"{foreseen / step - 1:+.1%}", end_section=number == len(by_table))
    return shown


def _subject(source: Any, options: dict[str, Any]) -> Subject:
    """Return a model with rows that say nothing, of which there are enough for two batches."""
    manifest, rng = converter.build(source, update="head", check=False, **options).manifest, np.random.default_rng(0)
    x, y = synthetic_inputs(manifest.signatures["train"], rng), synthetic_targets(manifest, rng)
    x, y = (_twice({name.removeprefix("y/"): array for name, array in each.items()}) for each in (x, y))
    return Subject(source, options, x, y, split(2 * BATCH, None, None, BATCH, 2), 1, RateSchedule())


def _twice(arrays: dict[str, np.ndarray]) -> Any:
    """Return the rows again after themselves; of an only array itself."""
    doubled = {name: np.concatenate([array, array]) for name, array in arrays.items()}
    return next(iter(doubled.values())) if len(doubled) == 1 else doubled


def _drawn(source: Any, count: int) -> dict[str, Update]:
    """Different schemes of one to three parts, at random."""
    space, rng = read_space(source, RATIOS), np.random.default_rng(0)
    able = [group for group, choices in enumerate(space.groups) if choices]
    schemes: dict[str, Update] = {}
    while len(schemes) < count:
        chosen = rng.choice(able, min(rng.integers(1, 4), len(able)), replace=False)
        choices = [float(rng.choice(c)) if group in chosen else 0.0 for group, c in enumerate(space.groups)]
        candidate = space.candidate(choices)
        schemes[space.describe(candidate)] = space.update(candidate)
    return schemes


if __name__ == "__main__":
    main()
