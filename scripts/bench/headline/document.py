"""Makes docs/time-to-accuracy.md and its figure of what `scripts/bench/headline --json` wrote.

    .venv/bin/python scripts/bench/headline/document.py [FILE] [--again FILE]

FILE is results.json beside it, if not given; what another run wrote (again.json) is compared with it. arm64.json
is what arm64.py wrote of the same results.
"""

from __future__ import annotations

import argparse
import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib as mpl
from arrivals import in_both, middle_curve, sooner
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from sides import OURS

from scripts.arguments import existing, writable

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "docs" / "time-to-accuracy.md"
#: Colours of Okabe and Ito, which are told apart without red and green.
DRAWN = {
    "keras": ("Keras fit", "#d55e00"),
    "tensorflow": ("TensorFlow's graph", "#e69f00"),
    "torch": ("PyTorch", "#f0e442"),
    "full": ("full", "#000000"),
    "sparse": ("sparse", "#0072b2"),
    "sparse, int8": ("sparse, int8", "#56b4e9"),
    "skip-lora, int8": ("skip-lora, int8", "#a6761d"),
    "discriminant": ("linear discriminant", "#009e73"),
    "discriminant, int8": ("linear discriminant, int8", "#cc79a7"),
    "of blocks, int8": ("discriminant of blocks, int8", "#7a0177"),
}


def main() -> None:
    """Reads the results, and writes the document and the figure beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=existing, nargs="?", default=HERE / "results.json")
    parser.add_argument("--again", type=existing, default=HERE / "again.json")
    parser.add_argument("--arm64", type=existing, default=HERE / "arm64.json")
    parser.add_argument("--output", type=writable, default=DOCUMENT)
    args = parser.parse_args()
    result = json.loads(args.file.read_text())
    args.output.write_text(document(result, *(json.loads(file.read_text()) for file in (args.again, args.arm64))))
    draw(result, args.output.with_suffix(".svg"))


def document(result: dict[str, Any], again: dict[str, Any], arm64: dict[str, Any]) -> str:
    """Return the text of the document, of a run, another one, and instructions on arm64."""
    # Markdown, not HTML: nothing is to be escaped.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"seconds": seconds}
    template = environment.get_template("time-to-accuracy.md.jinja")
    runs = result["rows"], again["rows"]
    both = {
        base: {row[:2]: row[2:] for row in in_both(*runs, base) if row[1] in OURS} for base in ("keras", "tensorflow")
    }
    by_task: dict[str, dict[Any, tuple[float, float]]] = {}
    for of, factors in both["keras"].items():
        by_task.setdefault(of[0], {})[of] = factors
    given: dict[str, Any] = {"most_of_tasks": {task: most(found) for task, found in by_task.items()}}
    given |= {"tasks": of_tasks(result), "both": both, "most": {base: most(found) for base, found in both.items()}}
    given |= {"arm64": of_tasks(arm64), "cpu": arm64["cpu"]}
    return template.render(**result, **given, sooner=sooner, drawn=DRAWN)


def most(both: dict[tuple[str, str], tuple[float, float]]) -> float:
    """Return the largest share by which a factor of another run differs."""
    return max(abs(second / first - 1) for first, second in both.values())


def of_tasks(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of each task by side."""
    tasks: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        tasks.setdefault(row["task"], {})[row["side"]] = row
    return tasks


def seconds(value: float) -> str:
    """Return seconds with two digits."""
    if value >= 0.9995:
        return f"{value:.1f} s"
    return f"{1e3 * value:.0f} ms" if value >= 0.0095 else f"{1e3 * value:.2g} ms"


def draw(result: dict[str, Any], file: Path) -> None:
    """Write curves of mean accuracy over CPU time, a panel a task; what is judged once is a point."""
    mpl.rcParams |= {"svg.hashsalt": "pocketune", "svg.fonttype": "none", "font.size": 9}
    tasks = of_tasks(result)
    figure = Figure(figsize=(9, 3.1 * -(-len(tasks) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(tasks) // 2), 2, squeeze=False).flat
    for panel, (task, sides) in zip_longest(panels, tasks.items(), fillvalue=("", {})):
        panel.set_axis_on() if sides else panel.set_axis_off()
        for side in (side for side in DRAWN if side in sides):
            label, colour = DRAWN[side]
            curve = middle_curve(sides[side]["curves"])
            xs, ys = [point["cpu_s"] for point in curve], [100 * point["accuracy"] for point in curve]
            panel.plot(xs, ys, color=colour, label=label, marker="o" if len(xs) == 1 else "", linewidth=1.6)
        if sides:
            panel.axhline(100 * sides["full"]["wanted"], color="#777777", linestyle="--", linewidth=0.8)
            panel.set(xscale="log", title=task, xlabel="CPU seconds of one thread", ylabel="accuracy, %")
            panel.spines[["top", "right"]].set_visible(False)
    handles, labels = next(iter(figure.axes)).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(file, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
