"""The plots of a report, as SVG that stands inside the page."""

from __future__ import annotations

import io
import re
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from scripts.harness.device import THERMAL
from scripts.harness.log import Result, ResultFile

WIDTH = 9.0
#: Times further apart than this need a logarithmic axis.
WIDE = 8.0
#: What is left free at the end of an axis, so that no point lies on the edge.
ROOM = 0.1
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.fonttype": "none",
    "svg.hashsalt": "pocketune",
    # A name is no formula.
    "text.parse_math": False,
}


def _groups(file: ResultFile) -> dict[str, list[Result]]:
    return {variant.title: results for variant, results in file.by_variant.items()}


@mpl.rc_context(STYLE)
def svg(figure: Figure) -> str:
    """Return the drawing as an element without a size of its own: the page gives it one."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
    head, rest = stream.getvalue().partition("<svg")[2].split(">", 1)
    return f"<svg{re.sub(r' (width|height)=.[^ ]*', '', head)}>{rest}"


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.add_subplot()


def _legend(axes: Axes, lines: dict[str, Line2D]) -> None:
    """Above the plot, where no line is. By name: matplotlib itself leaves out what begins with an underscore."""
    axes.legend(
        lines.values(), lines.keys(), fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2
    )


def _count(axes: Axes, first: int, last: int) -> None:
    """Draw an axis of jobs or steps: whole numbers, and room for two where there is one."""
    axes.set_xlim(first - 0.5, max(last, first + 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _times(axes: Axes, which: Literal["x", "y"], least: float, most: float) -> None:
    """Draw an axis of milliseconds from the least to the most that is drawn.

    It begins at 0, or is logarithmic where a small program would be a smear at 0 beside a large one. There at least two
    of 1, 2, 5, 10, 20, ... are in view, or two powers of ten.
    """
    if most <= WIDE * least:
        axes.set(**{f"{which}lim": (0, most * (1 + ROOM))})
        return
    room = (most / least) ** ROOM
    axes.set(**{f"{which}scale": "log", f"{which}lim": (least / room, most * room)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 1000 * least else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _without_slowest(times: list[float]) -> float:
    """Return the most that is drawn: single slow steps must not press all others into a corner. The box is in view."""
    return float(max(np.quantile(times, 0.99, method="lower"), np.quantile(times, 0.75)))


@mpl.rc_context(STYLE)
def distribution(file: ResultFile) -> Figure:
    """Step times of each variant: steps as dots, the quartiles as a box."""
    groups, warmup = _groups(file), file.warmup
    figure, axes = _figure(0.9 + 0.55 * len(groups))
    steps = [[ms for r in results for ms in r.timed(warmup)] for results in groups.values()]
    rng = np.random.default_rng(0)
    for at, values in enumerate(steps):
        axes.plot(values, at + rng.uniform(-0.18, 0.18, len(values)), ".", markersize=2.5, alpha=0.5, zorder=1)
    axes.boxplot(
        steps,
        orientation="horizontal",
        positions=range(len(steps)),
        widths=0.5,
        showfliers=False,
        tick_labels=list(groups),
        medianprops={"color": "black"},
    )
    _times(axes, "x", min(map(min, steps)), max(map(_without_slowest, steps)))
    axes.invert_yaxis()
    beyond = sum(ms > axes.get_xlim()[1] for values in steps for ms in values)
    axes.set_xlabel(f"milliseconds a step{f' (slower, not drawn: {beyond})' if beyond else ''}")
    return figure


@mpl.rc_context(STYLE)
def over_time(file: ResultFile) -> Figure:
    """Return the median of each job in the order in which they ran, and what the device says about heat."""
    order = {result.id: number for number, result in enumerate(sorted(file.results, key=lambda r: r.time), 1)}
    medians = {result.id: float(np.median(result.timed(file.warmup))) for result in file.results}
    figure, axes = _figure(2.6)
    lines = {}
    for name, results in _groups(file).items():
        numbers, times = [order[r.id] for r in results], [medians[r.id] for r in results]
        (lines[name],) = axes.plot(numbers, times, "o-", markersize=4, linewidth=1)
    _times(axes, "y", min(medians.values()), max(medians.values()))
    _count(axes, 1, len(order))
    axes.set_xlabel("job, in the order in which they ran")
    axes.set_ylabel("milliseconds a step")
    _legend(axes, lines)
    warm = [(order[r.id], r.after.celsius) for r in file.results if r.after.celsius is not None]
    hot = max((r.after.thermal or 0 for r in file.results), default=0)
    if warm:
        heat = axes.twinx()
        heat.grid(visible=False)
        heat.plot(*zip(*sorted(warm), strict=True), color="firebrick", linewidth=0.8, linestyle=":")
        heat.set_ylabel(f"°C (dotted); thermal status at most {THERMAL[hot]}", fontsize=8)
    return figure


@mpl.rc_context(STYLE)
def losses(file: ResultFile) -> Figure:
    """Return the losses of the first job of each variant, and the host's on the same data."""
    figure, axes = _figure(2.6)
    lines = {}
    for name, results in _groups(file).items():
        (lines[name],) = axes.plot(results[0].losses[0], linewidth=1.2)
        if check := file.checks.get(results[0].variant):
            axes.plot(check.host_losses, "x", color=lines[name].get_color(), markersize=5)
    _count(axes, 0, file.runs[0].setup.steps - 1)
    axes.set_xlabel("step (crosses: the host)")
    axes.set_ylabel("loss")
    _legend(axes, lines)
    return figure
