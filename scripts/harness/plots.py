"""The plots of a report, as SVG that stands inside the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from scripts.harness.device import THERMAL
from scripts.harness.log import Result, ResultFile

WIDTH = 9.0
#: Times further apart than this need a logarithmic axis.
WIDE = 8.0
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.fonttype": "none",
    "svg.hashsalt": "pocketune",
}


def _groups(file: ResultFile) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in file.results:
        groups.setdefault(result.variant.title, []).append(result)
    return groups


def _svg(figure: Figure) -> str:
    """The drawing as an element without a size of its own: the page gives it one."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
    head, rest = stream.getvalue().partition("<svg")[2].split(">", 1)
    return f"<svg{re.sub(r' (width|height)=.[^ ]*', '', head)}>{rest}"


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.add_subplot()


def _legend(axes: Axes) -> None:
    """Above the plot, where no line is; numbers of jobs and steps are whole."""
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _scale(axes: Axes, values: list[float], set_scale: Callable[[str], None]) -> None:
    """Logarithmic where a small program would be a smear at 0 beside a large one."""
    if max(values) > WIDE * min(values):
        set_scale("log")
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())


def distribution(file: ResultFile) -> str:
    """Step times of each variant: all steps as dots, the quartiles as a box."""
    groups, warmup = _groups(file), file.warmup
    with mpl.rc_context(STYLE):
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
        # A single slow step must not press all others into a corner.
        most = 1.15 * max(float(np.quantile(values, 0.99)) for values in steps)
        _scale(axes, [ms for values in steps for ms in values], axes.set_xscale)
        least = 0.85 * min(map(min, steps)) if axes.get_xscale() == "log" else 0
        axes.set_xlim(least, most)
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds a step")
        return _svg(figure)


def over_time(file: ResultFile) -> str:
    """The median of each job in the order in which they ran, and what the device says about heat."""
    groups, warmup = _groups(file), file.warmup
    order = {result.id: number for number, result in enumerate(sorted(file.results, key=lambda r: r.time), 1)}
    with mpl.rc_context(STYLE):
        figure, axes = _figure(2.6)
        for name, results in groups.items():
            medians = [np.median(r.timed(warmup)) for r in results]
            axes.plot([order[r.id] for r in results], medians, "o-", markersize=4, linewidth=1, label=name)
        _scale(axes, [ms for r in file.results for ms in r.timed(warmup)], axes.set_yscale)
        axes.set_ylim(bottom=None if axes.get_yscale() == "log" else 0)
        axes.margins(y=0.15)
        axes.set_xlabel("job, in the order in which they ran")
        axes.set_ylabel("milliseconds a step")
        _legend(axes)
        warm = [(order[r.id], r.after.celsius) for r in file.results if r.after.celsius is not None]
        hot = max((r.after.thermal or 0 for r in file.results), default=0)
        if warm:
            heat = axes.twinx()
            heat.grid(visible=False)
            heat.plot(*zip(*sorted(warm), strict=True), color="firebrick", linewidth=0.8, linestyle=":")
            heat.set_ylabel(f"°C (dotted); thermal status at most {THERMAL[hot]}", fontsize=8)
        return _svg(figure)


def losses(file: ResultFile) -> str:
    """The losses of the first job of each variant, and the host's on the same data."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(2.6)
        for name, results in _groups(file).items():
            (line,) = axes.plot(results[0].losses[0], linewidth=1.2, label=name)
            if check := file.checks.get(results[0].variant):
                axes.plot(check.host_losses, "x", color=line.get_color(), markersize=5)
        axes.set_xlabel("step (crosses: the host)")
        axes.set_ylabel("loss")
        _legend(axes)
        return _svg(figure)
