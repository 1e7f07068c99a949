"""The command `search`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from converter.cli.measuring import measured
from converter.cli.narration import Narrator
from converter.cli.options import (
    Debug,
    Json,
    Model,
    Profile,
    Quiet,
    RecipeFile,
    Trust,
    Wide,
    with_options,
)
from converter.cli.recipe_text import recipe_text
from converter.cli.resolve import BuildJob, job_of
from converter.cli.tables import Results
from converter.program.samples import read_samples
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import write_atomically
from converter.support.interrupts import Asking

if TYPE_CHECKING:
    from converter.tools.search import Found


@with_options("update", "memory_budget", "loss_scale")
def search(
    model: Model = None,
    data: Annotated[
        Path | None, typer.Option(help="An .npz file of rows: x or the inputs by name, y, and if there is one, group.")
    ] = None,
    budget: Annotated[
        list[str] | None, typer.Option(help="memory=64MiB, step=40ms, step=30% (of full), memory=head+25%; repeat it.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for recipe, figures and journal.")] = Path("found"),
    recipe: RecipeFile = None,
    trust: Trust = False,
    profile: Profile = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows that each training learns from; the others select and report. None: half of them."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often a training sees each of its rows.")] = 10,
    seeds: Annotated[
        int, typer.Option(min=2, help="Trainings of each scheme: figures are their mean, with its 95% interval.")
    ] = 5,
    rates: Annotated[str | None, typer.Option(help="Learning rates to try: 0.001,0.003,0.01.")] = None,
    rate_seeds: Annotated[
        int | None, typer.Option(min=1, help="How many of these compare learning rates. None: all.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="What the rate does in a training: constant, or cosine, which falls to 0.")
    ] = "constant",
    warmup: Annotated[float, typer.Option(help="The share of the steps in which the rate rises from 0 first.")] = 0.0,
    ratios: Annotated[str | None, typer.Option(help="Shares of a weight's channels to try: 0.125,0.25,0.5,1.")] = None,
    combinations: Annotated[
        int,
        typer.Option(
            min=1, help="How many combinations of parts are proposed at the budget, and half as many at shares of it."
        ),
    ] = 4,
    generations: Annotated[
        int, typer.Option(min=0, help="Rounds in which combinations that did well mutate and mix.")
    ] = 3,
    affordable: Annotated[bool, typer.Option("--affordable", help="Train alone only what fits the budget.")] = False,
    named: Annotated[
        bool,
        typer.Option(
            "--named",
            help="Train named schemes only, and of pockengine the last blocks that fit: no ratios or combinations.",
        ),
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure steps of the named schemes here, and foresee others by them.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that train. None: one for each core.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="The address of a Ray cluster that trains; local: one of its own.")
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="What the search may take; 0: until nothing is left to try. Ctrl-C ends it before."),
    ] = 5.0,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Find which part of MODEL should train within a budget, by training its parts on DATA.

    Named schemes are trained first, then each part alone, then combinations of what gained. What did best within the
    budget becomes a recipe, with its interval and what cannot be told from it; Ctrl-C gives the best so far.
    """
    from converter.cli.search_tables import show
    from converter.cli.search_watch import SearchWatch
    from converter.tools.search import Effort
    from converter.tools.search import search as find
    from converter.tools.search.run import default_rates
    from converter.tools.search.space import RATIOS

    narrator = Narrator(quiet)
    with narrator.stage("read the request"):
        require("ray" if ray else "search", "search")
        job = job_of(recipe, trust, model=model, profile=profile, **flags)
    job = measured(job, narrator)
    with narrator.stage("read the samples"):
        options = job.options()
        effort = Effort(
            seeds=seeds,
            rates=_numbers("rates", rates) or default_rates(options.get("optimizer")),
            rate_seeds=rate_seeds,
            combinations=combinations,
            generations=generations,
            affordable=affordable,
            named=named,
            measure=measure,
            ratios=_numbers("ratios", ratios) or RATIOS,
        )
        rows, group = _rows(data)
    with narrator.stage("make the model"):
        subject = job.model()
    watch = SearchWatch(narrator)
    with narrator.stage("search", watch.status), Asking(watch.stop):
        found = find(
            subject,
            rows,
            budget or (),
            group=group,
            samples=samples,
            epochs=epochs,
            schedule=schedule,
            warmup=warmup,
            effort=effort,
            out=out,
            workers=len(os.sched_getaffinity(0)) if workers is None else workers,
            ray=ray,
            minutes=minutes or None,
            stop=watch.stopped,
            progress=watch.tell,
            **options,
        )
    figures = found.to_json()
    write_atomically(out / "search.json", (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode())
    write_atomically(out / "recipe.toml", _recipe(job, found, out).encode())
    if as_json:
        print(json.dumps(figures, indent=2, allow_nan=False))
    else:
        show(Results(wide), found, out, trusted=bool(job.recipe.references()))


def _recipe(job: BuildJob, found: Found, folder: Path) -> str:
    said = f"Found by `pocketune search`; search.json beside it says how. Train it with {found.course}."
    recipe = replace(job.recipe.overridden(update=found.update), out=None)
    if found.frozen == "float32":  # `build` refuses int8 that would change nothing
        recipe = recipe.without("frozen", "calibration")
    return recipe_text(recipe, folder, said)


def _rows(path: Path | None) -> tuple[tuple[Any, Any], Any]:
    """x and y, and whose each row is."""
    if path is None:
        raise UsageError("name the rows: --data ROWS.npz, from numpy.savez(path, x=..., y=...)", page="command-line")
    found = read_samples(path)
    if not isinstance(found, tuple):
        raise UsageError(f"{path}: y is missing: numpy.savez(path, x=..., y=...)", page="command-line")
    x, y = found
    if not isinstance(x, dict) or "group" not in x:
        return (x, y), None
    others = {name: array for name, array in x.items() if name != "group"}
    return (others["x"] if others.keys() == {"x"} else others, y), x["group"]


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    try:
        numbers = tuple(sorted(float(part) for part in text.split(","))) if text is not None else ()
    except ValueError:
        numbers = (-1.0,)
    if any(not 0 < number < float("inf") or (option == "ratios" and number > 1) for number in numbers):
        raise UsageError(
            f"--{option}: expected numbers above 0 separated by commas, such as 0.125,0.25; got {text!r}",
            page="command-line",
        )
    return numbers
