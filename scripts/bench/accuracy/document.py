"""docs/accuracy.md from the figures."""

from __future__ import annotations

from typing import Any

import numpy as np

_TOP = """\
# Accuracy with real weights on real data

Made by `scripts/pretrained` and `.venv/bin/python scripts/bench/accuracy`, which trains the programs in the stock
runtime on one thread. All schemes of a net start from the same weights, learn from the same samples as often, and have
the same course of the learning rate: it rises for a tenth of the steps, then falls to 0 along a cosine. How high it
rises is the one thing that each scheme has of its own: of two values a decade, the one that does best on validation
rows (accuracy, then loss), after a search that ends when its neighbours on both sides did worse. Accuracy is on
held-out rows that nothing was chosen with: the mean over the choices of samples, and their standard deviation;
`before`, a new classifier is random. `points` is the difference from full, pair by pair, with its standard error.
`validation` has the accuracy with each learning rate that was tried, the chosen one in bold. `arena` and `state` are
predicted: activations of a step, and trained weights with the optimizer's slots. `step` is the CPU time of a step over
that of full, nothing cached. `sparse` is the scheme of that name, chosen from the structure of the net.
"""


def document(results: dict[str, dict[str, Any]]) -> str:
    """The text of the document."""
    return "\n".join([_TOP, *(_section(name, task) for name, task in results.items())])


def _section(name: str, task: dict[str, Any]) -> str:
    schemes = task["schemes"]
    setting = (
        f"{task['model']}; {task['data']}. {task['samples']} samples to learn from, chosen "
        f"{len(schemes['full']['after'])} times; {task['validation']} validation rows, {task['held_out']} held out; "
        f"{task['optimizer']}, batch {task['batch']}, {task['epochs']} epochs; programs for {task['target']}."
    )
    lines = [
        f"## {name}",
        "",
        setting,
        "",
        "| scheme | before | after | points | validation | trained parameters | arena | state | step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    full, near = schemes["full"], []
    for scheme, figures in schemes.items():
        after, points = 100 * np.array(figures["after"]), 100 * np.subtract(figures["after"], full["after"])
        error = points.std(ddof=1) / np.sqrt(len(points))
        if scheme != "full" and points.mean() >= -1:
            near.append(scheme)
        lines.append(
            f"| {scheme} | {figures['before']:.1%} | {after.mean():.1f}% ± {after.std(ddof=1):.1f} "
            f"| {'' if scheme == 'full' else f'{points.mean():+.1f} ± {error:.1f}'} | {_tried(figures)} "
            f"| {figures['trained_parameters']:,} | {figures['arena_bytes'] / 1e6:.1f} MB "
            f"| {figures['state_bytes'] / 1e6:.1f} MB | {figures['step_seconds'] / full['step_seconds']:.2f} |"
        )
    return "\n".join([*lines, "", f"No more than a point below full, on the average: {', '.join(near) or 'none'}.", ""])


def _tried(figures: dict[str, Any]) -> str:
    """The learning rates and what the validation rows say of them."""
    said = {rate: f"{rate:g}: {accuracy:.1%}" for rate, accuracy in figures["rates"].items()}
    said[figures["rate"]] = f"**{said[figures['rate']]}**"
    return ", ".join(said.values())
