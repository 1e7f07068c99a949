"""The command `estimate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from converter.cli import completion
from converter.cli.as_json import print_json
from converter.cli.boards import board_for, show_fits
from converter.cli.comparing import compare, schemes_of
from converter.cli.measuring import measured
from converter.cli.narration import Narrator
from converter.cli.options import (
    NOT_PRICED,
    BoardName,
    Debug,
    Json,
    Model,
    Quiet,
    RecipeFile,
    Trust,
    Updates,
    Wide,
    with_options,
)
from converter.cli.resolve import job_of
from converter.cli.tables import Results
from converter.support.errors import UsageError
from converter.support.words import MUCH_READ, count, reading, size
from converter.tools.estimate import Estimate, Estimates, Interval

#: Words for what the planner foresees of the memory.
_MEMORY = {"fits": "fits", "tight": "may be killed", "too much": "too much"}


@with_options("update", *NOT_PRICED)
def estimate(
    model: Model = None,
    device: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.device,
            help="A device by name (any other word lists them), or a file with its cores.",
        ),
    ] = None,
    board: BoardName = None,
    samples: Annotated[int, typer.Option(min=1, help="Rows to learn from.")] = 1000,
    epochs: Annotated[int, typer.Option(min=1, help="How often.")] = 1,
    results: Annotated[
        list[Path] | None, typer.Option(help="What scripts/device bench measured; may be given repeatedly.")
    ] = None,
    program: Annotated[
        list[Path] | None, typer.Option(help="A program that the results measured; may be given repeatedly.")
    ] = None,
    recipe: RecipeFile = None,
    trust: Trust = False,
    update: Updates = None,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Estimate time, memory and energy of training MODEL on a device, before anything is deployed."""
    from converter.tools.estimate import devices, estimate_rows, read_measured, setting, steps_of

    narrator = Narrator(quiet)
    if board is not None:
        if device is not None or results or program:
            raise UsageError("--board stands without --device, --results and --program", page="command-line")
        _on_board(
            board, recipe, trust, update, Asked(samples, epochs, wide, as_json), narrator, {"model": model, **flags}
        )
        return
    with narrator.stage("read the request"):
        if device is None:
            raise UsageError(
                f"name the device: --device {next(iter(devices()))}. Known: {', '.join(devices())}. A microcontroller "
                "is named by --board",
                page="command-line",
            )
        job = measured(job_of(recipe, trust, model=model, **flags), narrator)
        chosen, table = setting(device, job.recipe.get("target"))
        known, left_out = read_measured(results or (), program or ())
        schemes = schemes_of(job, update)
    with narrator.stage("make the model"):
        subject = job.model()
    rows = compare(job, subject, schemes, narrator, target=table)
    found = estimate_rows(rows, chosen, table, steps_of(samples, epochs, job.batch), known, left_out)
    if as_json:
        print_json({"model": job.name, "batch": job.batch, "samples": samples, "epochs": epochs, **found.to_json()})
    else:
        _show(Results(wide), found, f"{job.name} on {chosen.title} ({chosen.soc}), one thread")


@dataclass(frozen=True)
class Asked:
    """How much is learned, and how it is printed."""

    samples: int
    epochs: int
    wide: bool
    as_json: bool


def _on_board(
    name: str,
    recipe: Path | None,
    trust: bool,
    update: Sequence[str] | None,
    run: Asked,
    narrator: Narrator,
    flags: dict[str, Any],
) -> None:
    """Estimate training on a microcontroller, and print it."""
    from converter.tools.estimate import BoardEstimate, board_to_json, estimate_on_board, steps_of

    with narrator.stage("read the request"):
        on = board_for(name, flags, recipe)
        job = job_of(recipe, trust, **flags)
        schemes = schemes_of(job, update)
    with narrator.stage("make the model"):
        subject = job.model()
    steps = steps_of(run.samples, run.epochs, job.batch)
    rows = compare(job, subject, schemes, narrator)
    found = estimate_on_board(rows, on, steps, job.options().get("frozen") == "int8")
    if run.as_json:
        told = board_to_json(found, on, steps)
        print_json({"model": job.name, "batch": job.batch, "samples": run.samples, "epochs": run.epochs, **told})
        return
    results = Results(run.wide)
    results.table(
        f"{job.name} on {on.title}: {steps} steps",
        ("scheme", "instructions", "a step", "training", "RAM"),
        [
            (
                row.scheme,
                _counted(row.instructions),
                interval(row.step),
                interval(row.training),
                size(row.resident_bytes),
            )
            for row in found
            if isinstance(row, BoardEstimate)
        ],
        right=range(1, 5),
    )
    for row in found:
        if not isinstance(row, BoardEstimate):
            results.line(f"{row['scheme']}: not for this model: {row['error']}")
    show_fits(rows, on)
    results.line(
        f"speed: instructions of the reference kernels, {on.per_cycle[0]:g} to {on.per_cycle[1]:g} of them a cycle at "
        f"{on.mhz} MHz; measured on no board, and kernels of its maker need fewer"
    )


def _counted(instructions: Interval) -> str:
    return f"{count(round(instructions.low))} to {count(round(instructions.high))}"


def _show(results: Results, found: Estimates, title: str) -> None:
    rows = [row for row in found.rows if isinstance(row, Estimate)]
    results.table(
        f"{title}: {found.steps} steps",
        ("scheme", "a step", "training", "energy", "memory", "", "by"),
        [
            (
                row.scheme,
                interval(row.step),
                interval(row.training),
                row.energy,
                size(row.resident_bytes) if row.peak_bytes is None else f"{size(row.peak_bytes)} (measured)",
                _MEMORY[row.memory],
                row.based_on,
            )
            for row in rows
        ],
        right=range(1, 5),
        extra=[6],
    )
    for known in (row for row in rows if row.costs.get("read_bytes", 0) >= MUCH_READ):
        results.line(_reading(known))
    for row in found.rows:
        if not isinstance(row, Estimate):
            results.line(f"{row['scheme']}: not for this model: {row['error']}")
    if not all(row.is_measured for row in rows):
        results.line(f"speed: {found.speed}")
    for note in found.notes:
        results.line(f"not used: {note}")
    fits, too_much = rows[0].memory_limits
    results.line(
        f"memory: {found.device.title} has {found.device.memory_gib:g} GiB; up to {size(fits)} fit, from "
        f"{size(too_much)} on it is too much"
    )
    if found.device.accelerators:
        results.line(
            f"{', '.join(found.device.accelerators)} could run it as well (certify --on), and no table has times"
        )
    results.line("energy: A to 10 J, B to 100 J, C to 1 kJ, D to 10 kJ, E; a phone's battery holds about 60 kJ")


def _reading(row: Estimate) -> str:
    """Return how quickly labels are learnt from, and the file is read."""
    labels, least, most = row.costs["labels"], row.step.low, row.step.high
    read = reading(row.costs["read_bytes"], least, most)
    return f"{row.scheme}: {_two(labels / most)} to {_two(labels / least)} labels a second; {read}"


def interval(seconds: Interval) -> str:
    """Return an interval of times in words."""
    return f"{_time(seconds.low)} to {_time(seconds.high)}"


def _time(seconds: float) -> str:
    """With two digits, in the unit that a user would take."""
    for unit, factor, most in (("µs", 1e6, 1e-3), ("ms", 1e3, 1), ("s", 1, 100), ("min", 1 / 60, 6000)):
        if seconds < most:
            return f"{_two(seconds * factor)} {unit}"
    return f"{_two(seconds / 3600)} h"


def _two(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"
