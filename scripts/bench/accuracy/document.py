"""docs/accuracy.md from the figures."""

from __future__ import annotations

from typing import Any

import numpy as np

_TOP = """\
# Accuracy with real weights on real data

Made by `scripts/pretrained` and `.venv/bin/python scripts/bench/accuracy`, which trains the programs in the stock
runtime on one thread. All schemes of a net start from the same weights and learn from the same samples; the learning
rate of each is the one of those tried that did best on validation rows (accuracy, then loss). Accuracy is on held-out
rows that nothing was chosen with: the mean over the choices of samples, and their standard deviation; `before`, the
classifier is random. `points` is the difference from full, pair by pair, with its standard error. `arena` and `state`
are predicted: activations of a step, and trained weights with the optimizer's slots. `step` is the CPU time of a step
over that of full, nothing cached. `sparse` is the scheme of that name, chosen from the structure of the net.
"""


def document(results: dict[str, dict[str, Any]]) -> str:
    """The text of the document."""
    return "\n".join([_TOP, *(_section(name, task) for name, task in results.items())])


def _section(name: str, task: dict[str, Any]) -> str:
    setting = (
        f"{task['model']}; {task['data']}. {task['samples']} samples to learn from, chosen {task['choices']} times; "
        f"{task['validation']} validation rows, {task['held_out']} held out; {task['optimizer']}, "
        f"batch {task['batch']}, {task['epochs']} epochs."
    )
    lines = [
        f"## {name}",
        "",
        setting,
        "",
        "| scheme | before | after | points | learning rate (of) | trained parameters | arena | state | step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    full = task["schemes"]["full"]
    near = []
    for scheme, figures in task["schemes"].items():
        after, points = 100 * np.array(figures["after"]), 100 * np.subtract(figures["after"], full["after"])
        error = points.std(ddof=1) / np.sqrt(len(points))
        if scheme != "full" and points.mean() >= -1:
            near.append(scheme)
        tried = ", ".join(f"{rate:g}" for rate in figures["rates"])
        lines.append(
            f"| {scheme} | {figures['before']:.1%} | {after.mean():.1f}% ± {after.std(ddof=1):.1f} "
            f"| {'' if scheme == 'full' else f'{points.mean():+.1f} ± {error:.1f}'} | {figures['rate']:g} ({tried}) "
            f"| {figures['trained_parameters']:,} | {figures['arena_bytes'] / 1e6:.1f} MB "
            f"| {figures['state_bytes'] / 1e6:.1f} MB | {figures['step_seconds'] / full['step_seconds']:.2f} |"
        )
    return "\n".join([*lines, "", f"No more than a point below full, on the average: {', '.join(near) or 'none'}.", ""])
