"""One HTML page about a run: everything in it, nothing loaded from anywhere."""

from __future__ import annotations

from pathlib import Path

import jinja2

from converter.support.errors import UsageError
from scripts.harness import plots
from scripts.harness.device import THERMAL, Facts
from scripts.harness.log import ResultFile, Run
from scripts.harness.tables import NO_SPEED, UNSTEADY, agreement_in_words, in_millions, summarize


def page_of(run: Path, out: Path | None) -> Path:
    """Return where the page of a result file goes: beside it, unless the user says where.

    Raises:
        UsageError: writing there would end the results.
    """
    page = out or run.with_suffix(".html")
    if page.exists() and page.samefile(run):
        raise UsageError(f"the page would take the place of the results in {run}: give another --out")
    return page


def render(file: ResultFile) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["in_words"] = agreement_in_words
    environment.filters["in_millions"] = in_millions
    run, results = file.runs[0], file.results
    figures = {"Step times": plots.distribution, "Over the run": plots.over_time, "Losses": plots.losses}
    if run.facts.is_emulator:
        figures = {"Losses": plots.losses}
    drawn = [(title, plots.svg(figure(file))) for title, figure in figures.items()] if results else []
    conditions = [("before", run.conditions), *([("after", results[-1].after)] if results else [])]
    rows = summarize(file)
    return environment.get_template("report.html").render(
        run=run,
        allowed=file.allowed,
        commits=list(dict.fromkeys(_commit(r) for r in file.runs)),
        machine=_machine(run.facts),
        rows=rows,
        unsteady=UNSTEADY,
        timed=not run.facts.is_emulator,
        no_speed=NO_SPEED,
        counted=any(row.instructions for row in rows),
        plots=drawn,
        conditions=conditions,
        thermal=THERMAL,
        discarded=file.discarded,
        faults=file.faults,
    )


def _commit(run: Run) -> str:
    return f"{(run.commit or 'unknown')[:12]}{' with changes' if run.dirty else ''}"


def _machine(facts: Facts) -> str:
    """Return what a device is, as far as it says."""
    model = " ".join(filter(None, (facts.manufacturer, facts.model)))
    system = f"Android API {facts.sdk}" if facts.sdk else None
    return ", ".join(filter(None, (model, facts.soc, system, facts.fingerprint, " ".join(facts.abis))))
