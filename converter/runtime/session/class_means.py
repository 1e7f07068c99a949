"""Nearest class means as a dense layer: logits -sharpness / 2 |x - mean|^2, but for what all classes have in common."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from converter.support.errors import UsageError

#: Powers of two that are tried for the sharpness, beside the mean squared distance of a row to its class.
_TRIED = 12
#: By how much sharpnesses of rows may differ that are one but for rounding to float32.
_ROUNDING = 1e-3
#: Biases are no larger than this: float32 rounds logits of a million to a sixteenth.
_LARGEST_BIAS = float(1 << 20)


class Means(NamedTuple):
    """Class means.

    Attributes:
        means: float64 [classes, inputs].
        sharpness: what squared distances are multiplied by, twice.
        farther: float64 [classes]: what is added to the squared distance of a class, whose mean is of few samples.
    """

    means: np.ndarray
    sharpness: float
    farther: np.ndarray

    def layer(self) -> tuple[np.ndarray, np.ndarray]:
        """Return weights [classes, inputs] and biases [classes] of the dense layer, float32.

        Raises:
            UsageError: the logits would be so large that float32 rounds them coarsely.
        """
        weights = self.sharpness * self.means
        biases = -self.sharpness / 2 * ((self.means**2).sum(1) + self.farther)
        return as_layer(weights, biases)


def as_layer(weights: np.ndarray, biases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and biases of a dense layer as float32. Raise UsageError where that rounds logits coarsely."""
    worst = biases[np.abs(biases).argmax()]
    if np.isnan(worst):
        raise UsageError(
            "what the last layer reads of these rows is NaN or infinite, so they have no mean", page="sessions"
        )
    if not abs(worst) <= _LARGEST_BIAS:
        raise UsageError(
            "the means of the classes are too large beside their differences: the last layer would have a bias of "
            f"{worst:.3g}, and float32 is too coarse beyond {_LARGEST_BIAS:,.0f}. Normalise the input of the "
            "last layer, as a batch norm or layer norm does",
            page="sessions",
        )
    return weights.astype(np.float32), biases.astype(np.float32)


def means_of(x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Return the mean of the rows of each class, float64 [classes, inputs]; each has at least one.

    Args:
        x: [rows, inputs].
        y: labels [rows].
        classes: how many there are.
    """
    sums = np.zeros((classes, x.shape[1]))
    np.add.at(sums, y, x)
    return sums / np.bincount(y, minlength=classes)[:, None]


def sharpness_of(x: np.ndarray, y: np.ndarray, means: np.ndarray) -> float:
    """Return the sharpness with which the softmax of a row says its class best, the row left out of its class' mean.

    Args:
        x: [rows, inputs], of some or all of the classes.
        y: labels [rows].
        means: of all classes; of those of the rows the means of these very rows.

    Returns:
        A power of two over the mean squared distance of a row to its class, with the lowest cross entropy of those
        that are tried; rows that are alone in their class have no part in it.
    """
    counts = np.bincount(y, minlength=len(means))[y]
    distances = np.stack([((x - mean) ** 2).sum(1) for mean in means], axis=1)  # not all differences at a time
    rows = np.arange(len(x))
    apart = counts > 1
    own = distances[rows, y] * (counts / np.maximum(counts - 1, 1)) ** 2
    distances[rows, y] = own
    spread = own[apart].mean() if apart.any() else 0.0
    if not spread:
        between = ((means - means.mean(0)) ** 2).sum(1).mean()
        between = between or (means**2).sum(1).mean()  # of one class alone: any will do that is of its size
        return float(_TRIED / between) if between else 1.0
    tried = [2.0**power / spread for power in range(_TRIED)]
    losses = []
    for sharpness in tried:
        scores = -sharpness / 2 * distances[apart]
        top = scores.max(1)
        losses.append((np.log(np.exp(scores - top[:, None]).sum(1)) + top + sharpness / 2 * own[apart]).mean())
    return float(tried[int(np.argmin(losses))])


def farther_of(x: np.ndarray) -> float:
    """Return by how much farther a class is than the mean of its few samples, in squared distance.

    Where a class lies is known but for a part 1 / n of its spread: the density of a row in spite of that (a normal
    distribution whose mean is another) is lower by the power -1 / 2 of 1 + 1 / n for each of its dimensions, which
    together have the spread of the samples, each left out of their mean. Of one sample the spread is not known.

    Args:
        x: the samples [n, inputs].
    """
    count = len(x)
    if count < 2:
        return 0.0
    spread = ((x - x.mean(0)) ** 2).sum(1).mean() * (count / (count - 1)) ** 2
    return float(np.log1p(1 / count) * spread)


def means_in(weights: np.ndarray, biases: np.ndarray, whole: np.ndarray) -> Means | None:
    """Return the class means that a dense layer was made of; None where it is another, as after a step.

    Args:
        weights: [classes, inputs].
        biases: [classes].
        whole: bool [classes], which of them are no farther than their means: they tell the sharpness.
    """
    weights, biases = weights.astype(np.float64), biases.astype(np.float64)
    squares = (weights**2).sum(1)
    tells = whole & ((squares > 0) | (biases != 0))
    if not tells.any():
        nothing = not squares.any() and not biases.any()
        return Means(weights, 1.0, np.zeros(len(weights))) if len(weights) and nothing else None
    if (biases[tells] >= 0).any():
        return None
    found = squares[tells] / (-2 * biases[tells])
    sharpness = float(np.median(found))
    if not sharpness or np.abs(found / sharpness - 1).max() > _ROUNDING:
        return None
    means = weights / sharpness
    lengths = (means**2).sum(1)
    farther = -2 * biases / sharpness - lengths
    return None if (farther < -_ROUNDING * lengths.max()).any() else Means(means, sharpness, farther)
