"""Training logs for a report: events of `fit`, the log of a phone, the harness' results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from converter.support.errors import UsageError
from converter.support.json_lines import json_lines
from converter.support.words import figure

#: Points of a drawn curve; of a longer training every so many steps' mean is drawn.
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Curve:
    """A line over the steps; None where there is no point."""

    name: str
    y: tuple[float | None, ...]


@dataclass(frozen=True)
class Run:
    """A training, or jobs of one plan on one device.

    Attributes:
        title: what it is.
        facts: a sentence about it.
        x: the steps at which curves have points.
        curves: losses.
        columns, rows: a table, the first column names what each row is about.
        caption: of the table.
    """

    title: str
    facts: str = ""
    x: tuple[int, ...] = ()
    curves: tuple[Curve, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    caption: str = ""


def read_run(path: str | os.PathLike) -> Run:
    """Reads a file of JSON lines.

    Raises:
        UsageError: it cannot be read, or its lines are none of the three kinds.
    """
    lines = list(json_lines(Path(path)))
    kinds = {line.get("type") for line in lines}
    try:
        if "run" in kinds:
            return _harness(lines)
        if "step" in kinds:
            return _fit(Path(path).name, lines)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UsageError(
            f"{path}: a line is not as it should be ({type(error).__name__}: {error})", page="reports"
        ) from None
    raise UsageError(
        f"{path} holds no steps of a training: pass what pocketune.Journal, the app or scripts/device wrote",
        page="reports",
    )


def _fit(file: str, lines: list[dict[str, Any]]) -> Run:
    """Return the steps of `fit`, or of a job in the app."""
    steps = [line for line in lines if line["type"] == "step"]
    losses: dict[str, dict[int, float]] = {}
    several = any(line.get("repeat") for line in steps)
    for line in steps:
        curve = f"loss, repeat {line['repeat'] + 1}" if several else "loss"
        losses.setdefault(curve, {})[int(line["step"])] = float(line["loss"])
    last_step = -1
    rows, columns = [], dict[str, None]()
    for line in lines:
        if line["type"] == "step":
            last_step = int(line["step"])
        elif line["type"] == "evaluated":
            figures: Mapping[str, float] = line["figures"]
            columns |= dict.fromkeys(figures)
            rows.append((str(int(line["epoch"]) + 1), figures))
            if "validation_loss" in figures:
                losses.setdefault("validation loss", {})[last_step] = float(figures["validation_loss"])
    times = [1000 * float(line["seconds"]) if "seconds" in line else float(line["millis"]) for line in steps]
    facts = f"{len(steps)} steps, {median(times):.3g} ms a step (median)."
    for name in columns:
        if name.startswith("validation_") and name != "validation_loss" and len(rows) > 1:
            first, last = (rows[k][1].get(name, float("nan")) for k in (0, -1))
            facts += f" Held-out {name.removeprefix('validation_')}: {figure(name, first)} after the first epoch, "
            facts += f"{figure(name, last)} after the last."
    x, curves = _drawn(losses)
    return Run(
        f"Training: {file}",
        facts,
        x,
        curves,
        ("epoch", *columns) if rows else (),
        tuple((epoch, *(figure(c, figures[c]) if c in figures else "" for c in columns)) for epoch, figures in rows),
        "By epoch",
    )


def _drawn(losses: Mapping[str, Mapping[int, float]]) -> tuple[tuple[int, ...], tuple[Curve, ...]]:
    """Curves over common steps, thinned out where there are too many."""
    every = sorted({step for curve in losses.values() for step in curve})
    width = -(-len(every) // _MOST_POINTS) or 1
    bins = [every[i : i + width] for i in range(0, len(every), width)]

    def mean(curve: Mapping[int, float], steps: list[int]) -> float | None:
        found = [curve[step] for step in steps if step in curve and isfinite(curve[step])]
        return sum(found) / len(found) if found else None

    curves = tuple(Curve(name, tuple(mean(curve, steps) for steps in bins)) for name, curve in losses.items())
    return tuple(steps[-1] for steps in bins), curves


def _harness(lines: list[dict[str, Any]]) -> Run:
    """Return the results of `scripts/device bench` on one device."""
    first = next(line for line in lines if line["type"] == "run")
    device, warmup = first["facts"], int(first["setup"]["warmup"])
    good = [line for line in lines if line["type"] == "result" and not line.get("discarded")]
    jobs: dict[str, list[dict[str, Any]]] = {}
    for line in good:
        jobs.setdefault(_title(line["variant"], line["runs"]), []).append(line)
    rows, losses = [], dict[str, dict[int, float]]()
    for title, results in jobs.items():
        times = [float(ms) for result in results for repeat in result["ms"] for ms in repeat[warmup:]]
        peaks = [int(result["peak_kib"]) for result in results if result.get("peak_kib")]
        memory = f"{max(peaks) / 1024:.0f} MiB" if peaks else "unknown"
        rows.append((title, f"{median(times):.3g}", str(len(results)), memory))
        losses[title] = {step: float(loss) for step, loss in enumerate(results[0]["losses"][0])}
    wrong = [line for line in lines if line["type"] == "checked" and not line["ok"]]
    facts = ", ".join(filter(None, (device.get("manufacturer"), device.get("model"), device.get("soc"))))
    facts += f". {first['time']}." + (f" {len(wrong)} with wrong numbers." if wrong else "")
    x, curves = _drawn(losses)
    columns = ("program", "ms a step", "jobs", "memory")
    return Run(
        f"On {device['name']}: {first['plan']}", facts, x, curves, columns, tuple(rows), "Median step by program"
    )


def _title(variant: Mapping[str, Any], runs: str) -> str:
    threads = variant["threads"]
    build = f"{variant['build']}: " if variant["build"] else ""
    return f"{build}{variant['program']}, batch {variant['batch']}, {runs}, {threads} thread{'s' * (threads > 1)}"
