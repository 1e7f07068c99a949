"""Tables for the terminal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.markup import escape
from rich.table import Table

from scripts.harness.compare import CHANCE, Comparison, judged
from scripts.harness.device import THERMAL, Conditions, Facts
from scripts.harness.log import Checked, ResultFile

#: Jobs whose medians are so far apart, largest over smallest, were disturbed.
UNSTEADY = 1.25
#: Of a device that plays another one.
NO_SPEED = "emulated: how long a step took says nothing, and is left out"
COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "red"}


@dataclass(frozen=True)
class Summary:
    """A variant's figures over all its good results; times in milliseconds.

    Attributes:
        cpu: CPU time of a step, the mean: a phone counts whole milliseconds.
        mad: median absolute deviation of the steps.
        spread: of the jobs' medians, largest over smallest.
        instructions: of the runtime in a step, the median of the jobs; None where nobody counts.
        check: the last one; None when there was none.
    """

    title: str
    runs: str
    runtime: str
    jobs: int
    steps: int
    median: float
    cpu: float
    p5: float
    p95: float
    mad: float
    spread: float
    peak_kib: int | None
    instructions: int | None
    check: Checked | None


def summarize(file: ResultFile) -> list[Summary]:
    """Return the figures of each variant, in the order of the plan."""
    warmup = file.warmup
    summaries = []
    for variant, results in file.by_variant.items():
        steps = np.array([ms for r in results for ms in r.timed(warmup)])
        jobs = [np.median(r.timed(warmup)) for r in results]
        median = float(np.median(steps))
        summaries.append(
            Summary(
                title=variant.title,
                runs=results[0].runs,
                runtime=results[0].runtime,
                jobs=len(results),
                steps=len(steps),
                median=median,
                cpu=float(np.mean([ms for r in results for ms in r.computed(warmup)])),
                p5=float(np.quantile(steps, 0.05)),
                p95=float(np.quantile(steps, 0.95)),
                mad=float(np.median(np.abs(steps - median))),
                spread=float(max(jobs) / min(jobs)),
                peak_kib=max((r.peak_kib for r in results if r.peak_kib is not None), default=None),
                instructions=_median([n for r in results for n in r.instructions]),
                check=file.checks.get(variant),
            )
        )
    return summaries


def _median(counts: list[int]) -> int | None:
    return int(np.median(counts)) if counts else None


def results_table(file: ResultFile) -> Table:
    """Return what a run found."""
    facts = file.runs[0].facts
    notes = [f"measured although: {', '.join(file.allowed)}"] if file.allowed else []
    notes += [NO_SPEED] if facts.is_emulator else []
    caption = escape("; ".join(notes)) or None
    table = Table(title=escape(f"{facts.name} ({facts.model}), {file.runs[0].plan}"), caption=caption)
    summaries = summarize(file)
    counted = ["instructions"] if any(s.instructions for s in summaries) else []
    timed = [] if facts.is_emulator else ["ms a step", "CPU", "p5..p95", "MAD"]
    for name in ("program", "runs on", *timed, "jobs", "memory", *counted, "numbers"):
        table.add_column(name, justify="left" if name in ("program", "runs on", "numbers") else "right")
    for s in summaries:
        times = (f"{s.median:.3g}", f"{s.cpu:.3g}", f"{s.p5:.3g}..{s.p95:.3g}", f"{s.mad / s.median:.1%}")
        table.add_row(
            escape(s.title),
            escape(f"{s.runs}, {s.runtime}"),
            *(times if timed else ()),
            f"[yellow]{s.jobs}, unsteady[/]" if timed and s.spread > UNSTEADY else str(s.jobs),
            "" if s.peak_kib is None else f"{s.peak_kib / 1024:.0f} MiB",
            *([in_millions(s.instructions)] if counted else []),
            agreement_in_words(s.check),
        )
    return table


def comparison_table(found: list[Comparison], threshold: float) -> Table:
    """Verdicts."""
    notes = []
    if (variants := len(judged(found))) > 1:
        notes.append(
            f"{variants} variants: so that a false FAIL of any has a chance of {CHANCE:.1%}, the clearest is asked for "
            f"{CHANCE / variants:.2%} (Holm's correction). The intervals are of each variant alone."
        )
    if any(c.ratio is not None and not c.paired for c in found):
        notes.append(
            "Jobs of two runs: what changed between the runs is not in the interval; see builds in docs/harness.md."
        )
    table = Table(title=f"slower than before? threshold {threshold:.0%}", caption="\n".join(notes) or None)
    for name in ("program", "before", "now", "ratio", "95 % interval", "jobs", "verdict", ""):
        table.add_column(name, justify="left" if name in ("program", "verdict", "") else "right")
    for c in found:
        jobs = f"{c.jobs[0]} pairs" if c.paired else f"{c.jobs[0]} and {c.jobs[1]}"
        table.add_row(
            escape(c.key),
            *(
                in_millions(v) if c.unit == "instructions" else "" if v is None else f"{v:.3g} {c.unit}"
                for v in (c.a, c.b)
            ),
            "" if c.ratio is None else f"{c.ratio:.3f}",
            "" if c.interval is None else f"{c.interval[0]:.3f}..{c.interval[1]:.3f}",
            jobs,
            f"[{COLOURS[c.verdict]}]{c.verdict}[/]",
            escape(c.why),
        )
    return table


def in_millions(instructions: float | None) -> str:
    """Return a count of instructions."""
    return "" if instructions is None else f"{instructions / 1e6:.4g} M"


def device_row(facts: Facts, now: Conditions) -> tuple[str, ...]:
    """Return a row of `list`."""
    battery = "" if now.battery_percent is None else f"{now.battery_percent} %"
    heat = " ".join(
        part
        for part in (
            "" if now.thermal is None else THERMAL[now.thermal],
            "" if now.celsius is None else f"{now.celsius:.0f} °C",
        )
        if part
    )
    system = f"Android API {facts.sdk}" if facts.sdk else facts.fingerprint or ""
    abi = facts.abis[0] if facts.abis else ""
    return tuple(map(escape, (facts.name, facts.model, facts.soc or "", system, abi, battery, heat)))


def agreement_in_words(check: Checked | None) -> str:
    """Return what the check of a variant found."""
    if check is None:
        return "not checked"
    if not check.loss_error and not check.update_error:
        return "exactly the host's"
    return f"as the host: losses within {check.loss_error:.0e}, weights within {check.update_error:.0e} of the update"
