"""Linear discriminant analysis as a dense layer: class means under a covariance that all classes share, shrunk."""

from __future__ import annotations

from typing import Any

import numpy as np

from converter.support.errors import UsageError


def checked_shrinkage(shrinkage: Any) -> float | None:
    """Return a given shrinkage, None for the one of Ledoit and Wolf. Raise UsageError for what is neither."""
    if shrinkage == "auto":
        return None
    number = not isinstance(shrinkage, bool | str) and isinstance(shrinkage, int | float | np.number)
    if not number or not 0 < shrinkage <= 1:
        raise UsageError(f"shrinkage: 'auto', or a number above 0 and to 1, not {shrinkage!r}", page="sessions")
    return float(shrinkage)


def discriminant(x: np.ndarray, y: np.ndarray, means: np.ndarray, shrinkage: float | None) -> tuple[np.ndarray, ...]:
    """Return the layer of a linear discriminant: weights float64 [classes, inputs] and biases [classes].

    As scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr")`: the covariance is the mean of the classes' by their
    shares of the rows, which are the priors too.

    Args:
        x: [rows, inputs].
        y: labels [rows].
        means: of the rows of each class, float64 [classes, inputs].
        shrinkage: what part of each class' covariance is its mean variance in all directions; None: that of Ledoit and
            Wolf (2004) of the class' standardized rows.

    Raises:
        UsageError: there is one class, or the rows of a class do not differ enough.
    """
    if len(means) < 2:
        raise UsageError("shrinkage needs two classes or more, that there is something to tell apart", page="sessions")
    shares = np.bincount(y, minlength=len(means)) / len(y)
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for label, share in enumerate(shares):
        covariance += share * _shrunk(x[y == label] - means[label], shrinkage)
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        lower = np.zeros(())
    if not lower.any() or np.diag(lower).min() ** 2 <= np.finfo(np.float64).eps * np.diag(covariance).max():
        raise UsageError(
            "the features of a class do not differ enough for a covariance: pass more samples of each class (two at "
            "least), or a larger shrinkage",
            page="sessions",
        )
    weights = np.linalg.solve(lower.T, np.linalg.solve(lower, means.T)).T
    return weights, np.log(shares) - (means * weights).sum(1) / 2


def _shrunk(centred: np.ndarray, shrinkage: float | None) -> np.ndarray:
    """Return the shrunk covariance of rows whose mean is 0."""
    scale = np.ones(centred.shape[1])
    if shrinkage is None:
        deviation = np.sqrt((centred**2).mean(0))
        scale = np.where(deviation > 0, deviation, 1)
        centred = centred / scale
        shrinkage = _ledoit_wolf(centred)
    covariance = centred.T @ centred / len(centred)
    variance = np.trace(covariance) / len(covariance)
    covariance *= 1 - shrinkage
    covariance[np.diag_indices_from(covariance)] += shrinkage * variance
    return scale[:, None] * covariance * scale


def _ledoit_wolf(centred: np.ndarray) -> float:
    """Return the shrinkage of Ledoit and Wolf, A well-conditioned estimator for large-dimensional covariance matrices.

    It is the mean squared error of the covariance's elements by the mean square of their distance from a multiple of
    the unit matrix, both estimated of the rows, and at most 1.
    """
    rows, inputs = centred.shape
    if inputs == 1:
        return 0.0
    covariance = centred.T @ centred / rows
    variance = np.trace(covariance) / inputs
    squares = (covariance**2).sum()
    distance = squares - inputs * variance**2
    error = (((centred**2).sum(1) ** 2).sum() / rows - squares) / rows
    return float(min(error, distance) / distance) if min(error, distance) > 0 else 0.0
