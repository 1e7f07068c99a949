"""docs/accuracy.md from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_HEADING = "## "
_TOP = """\
# Accuracy with real weights on real data

*For anyone who chooses a scheme by its accuracy elsewhere; 5 minutes.*

`scripts/pretrained` and `.venv/bin/python scripts/bench/accuracy` make this page: they train the programs in the stock
runtime on one thread. All schemes of a net start from the same weights, use the same samples equally often, and have
the same learning rate schedule: it rises for a tenth of the steps, then falls to 0 along a cosine. Only the peak rate
differs between schemes. It is searched among two values a decade, until the neighbours on both sides do worse, and is
the best on validation rows (accuracy, then loss) with the first choice of samples, or on average with the first few.
Accuracy is on held-out rows that were not used for any choice: the mean over the choices of samples, and their
standard deviation; in the column `before` the new classifier is random. `points` is the difference from full, pair by
pair, with its standard error. `validation` has the accuracy with each learning rate that was tried, the chosen one in
bold. `arena` and `state` are predicted: activations of a step, and trained weights with the optimizer's slots. `step`
is the CPU time of a step relative to full, nothing cached. `sparse` is the scheme of that name, chosen from the
structure of the net.
"""


def document(sections: Sequence[str]) -> str:
    """Return the text of the document."""
    return "\n".join([_TOP, *sections])


def sections(document: str) -> dict[str, str]:
    """Return the sections of such a text by their tasks."""
    _, *parts = document.split(f"\n{_HEADING}")
    return {part.partition("\n")[0]: f"{_HEADING}{part}" for part in parts}


def section(name: str, task: dict[str, Any], made: str) -> str:
    """Return what is said of a task.

    Args:
        name: of the task.
        task: what all schemes share, and `schemes`, the figures of each.
        made: when, of which commit and on which machine, in words.
    """
    schemes = task["schemes"]
    compared = f", rates compared with the first {task['compared']} of them" if task["compared"] > 1 else ""
    separate = " for each choice" if task["judged_apart"] else ""
    setting = (
        f"{task['model']}; {task['data']}. {task['samples']} samples to learn from, chosen "
        f"{len(schemes['full']['after'])} times{compared}; {task['validation']} validation rows, "
        f"{task['held_out']} held out{separate}; {task['optimizer']}, batch {task['batch']}, {task['epochs']} epochs; "
        f"programs for {task['target']}."
    )
    lines = [
        f"{_HEADING}{name}",
        "",
        setting,
        "",
        f"{made}.",
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
    return "\n".join([*lines, "", f"At most a point below full on average: {', '.join(near) or 'none'}.", ""])


def _tried(figures: dict[str, Any]) -> str:
    """Return the learning rates and what the validation rows say of them."""
    said = {rate: f"{rate:g}: {accuracy:.1%}" for rate, accuracy in figures["rates"].items()}
    said[figures["rate"]] = f"**{said[figures['rate']]}**"
    return ", ".join(said.values())
