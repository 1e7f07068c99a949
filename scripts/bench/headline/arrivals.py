"""When curves of accuracy arrive, and what that comes to over the choices of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def summed_up(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each side, full first, what it reaches, and when it is as good as full; None where it never is.

    Accuracies are means over the choices of samples, evaluation by evaluation; so are the times, with their standard
    error.
    """
    ends = [curve[-1]["accuracy"] for curve in found[0]["curves"]]
    wanted = float(np.mean(ends) - np.std(ends, ddof=min(1, len(ends) - 1)) / 2)
    rows = []
    for side in found:
        middle = middle_curve(side["curves"])
        place = arrival(middle, wanted)
        there: dict[str, Any] = {"cpu_s": None, "wall_s": None, "cpu_error_s": None, "evaluation": place}
        if place is not None:
            times = [curve[place]["cpu_s"] for curve in side["curves"]]
            error = float(np.std(times, ddof=1) / np.sqrt(len(times))) if len(times) > 1 else None
            there |= {key: middle[place][key] for key in ("cpu_s", "wall_s")} | {"cpu_error_s": error}
        rows.append({**side, "wanted": wanted, "final": middle[-1]["accuracy"], **there})
    return rows


def middle_curve(
    curves: list[list[dict[str, float]]], middle: Callable[[list[float]], Any] = np.mean
) -> list[dict[str, float]]:
    """Return the mean, or what else is asked for, of curves with the same evaluations."""
    return [{key: float(middle([p[key] for p in points])) for key in points[0]} for points in zip(*curves, strict=True)]


def arrival(curve: list[dict[str, float]], wanted: float) -> int | None:
    """Return the first evaluation from which on accuracy stays at what is wanted; None where it does not."""
    below = [place for place, point in enumerate(curve) if point["accuracy"] < wanted]
    first = below[-1] + 1 if below else 0
    return first if first < len(curve) else None


def sooner(cpu: float | None, base: dict[str, Any] | None) -> str:
    """Return by what factor a side arrives before another; before one that never does, > that of its whole training."""
    found = factor(cpu, base)
    return "" if found is None else f"{'> ' if base['cpu_s'] is None else ''}{found:.1f} x"


def factor(cpu: float | None, base: dict[str, Any] | None) -> float | None:
    """Return the number of `sooner`; None where a side never arrives, or there is no other."""
    if cpu is None or base is None:
        return None
    there = base["cpu_s"]
    return float((middle_curve(base["curves"])[-1]["cpu_s"] if there is None else there) / cpu)


def in_both(rows: list[dict[str, Any]], again: list[dict[str, Any]], base: str) -> list[tuple[str, str, float, float]]:
    """Return task, side and the factor over another side in a run and in a second one, where it arrived in both.

    Left out is what is not the same training or not the same factor: where the learning rate of one of the two changed,
    or the other arrived in one run alone.
    """
    runs = [{(row["task"], row["side"]): row for row in each} for each in (rows, again)]
    found = []
    for task, side in runs[0]:
        both = [(run.get((task, side)), run.get((task, base))) for run in runs]
        factors = [None if row is None else factor(row["cpu_s"], other) for row, other in both]
        if side != base and None not in factors and len({_compared(*pair) for pair in both}) == 1:
            found.append((task, side, *factors))
    return found


def _compared(row: Any, other: Any) -> tuple[float | None, float, bool]:
    """Return what two runs must share to be compared. What is judged once took no steps, at whatever rate."""
    return (row["rate"] if len(row["curves"][0]) > 1 else None), other["rate"], other["cpu_s"] is None
