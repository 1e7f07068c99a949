"""Target checks (labels in range, numbers that a loss takes), and class weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from converter.program.manifest import Manifest
from converter.runtime.data.examples import Examples, finite_number
from converter.support.errors import UsageError


def check_targets(examples: Examples, manifest: Manifest) -> Examples:
    """Return the same rows, whose targets are what the losses compare. Raises UsageError for others."""
    for name, known in manifest.target_labels.items():
        y = examples.arrays.get(name)
        if y is None or not len(wrong := np.argwhere(~known.fit(y))):
            continue
        if y.dtype.kind != "f":
            raise UsageError(
                f"{name}: labels go from 0 to {(known.count or 0) - 1} in this program, and these from {y.min()} to "
                f"{y.max()}",
                page="sessions",
            )
        place, loss = tuple(wrong[0]), manifest.losses.get(name, "its loss")
        raise UsageError(f"{name}: {loss} takes {known.words}, and row {place[0]} holds {y[place]:g}", page="sessions")
    return examples


def weigh_by_class(examples: Examples, weights: Any, manifest: Manifest) -> Examples:
    """Return the same rows, each weighing as many times as much as its label says; 1 where a label is not named.

    Args:
        examples: checked rows.
        weights: {label: weight}.
        manifest: of the program.

    Raises:
        UsageError: y are no labels of rows, a key is no label, or a weight is no number from 0 on.
    """
    if not isinstance(weights, Mapping):
        raise UsageError(f"class_weight must be a dict {{label: weight}}, got {weights!r}", page="sessions")
    if len(manifest.targets) != 1:
        raise UsageError(
            f"class_weight needs a program of one target; this one has {len(manifest.targets) or 'none'}",
            page="sessions",
        )
    name = manifest.targets[0].name
    y = examples.arrays[name]
    labels = y.reshape(len(y), -1)
    one_hot = y.ndim == 2 and y.shape[1] > 1 and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all()
    if one_hot:
        labels = y.argmax(1)[:, None]
    if labels.shape[1] != 1 or (labels != np.round(labels)).any():
        raise UsageError(
            f"class_weight is for labels, one whole number or one-hot row each; {name} is {y.dtype} {list(y.shape)}",
            page="sessions",
        )
    known = y.shape[1] if one_hot else 2 if manifest.losses.get(name, "").startswith("binary_") else None
    if name in manifest.target_labels and manifest.target_labels[name].count is not None:
        known = manifest.target_labels[name].count
    factors = np.ones(len(y), np.float32)
    for label, weight in weights.items():
        if not isinstance(label, int | float | np.number) or label != np.round(label):
            raise UsageError(f"class_weight: {label!r} is no label, which is a whole number", page="sessions")
        if known is not None and not 0 <= label < known:
            raise UsageError(
                f"class_weight: {label!r} is no label of this program, which has 0 to {known - 1}", page="sessions"
            )
        if (number := finite_number(f"class_weight[{label!r}]", weight)) < 0:
            raise UsageError(f"class_weight[{label!r}] is below zero: {number}", page="sessions")
        factors[labels[:, 0] == label] = number
    return Examples(examples.arrays | {"weight": examples.arrays["weight"] * factors})
