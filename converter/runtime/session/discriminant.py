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
    shares of the rows, which are the priors too. Logits are from the middle of the means on, which makes them smaller
    and no class likelier: what is large in all means alike would leave float32 few digits for what differs. The lowest
    bias is 0: those of class means are below it, so that a discriminant is never taken for them.

    Args:
        x: float64 [rows, inputs], of many blocks some 10 MB, which are used up.
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
    diagonal = np.zeros(x.shape[1])
    for label, share in enumerate(shares):
        own = y == label
        centred = x[own] - means[label]
        factor, variances = _shrunk(centred, shrinkage)
        x[own] = centred * np.sqrt(factor / len(y))
        diagonal += share * variances
    middle = means.mean(0)
    weights = _solved(x, diagonal, (means - middle).T).T
    biases = np.log(shares) - ((means + middle) * weights).sum(1) / 2
    return weights, biases - biases.min()


def _shrunk(centred: np.ndarray, shrinkage: float | None) -> tuple[float, np.ndarray]:
    """Return what the covariance of rows whose mean is 0 is multiplied by, and the variances [inputs] added to it."""
    scale = np.ones(centred.shape[1])
    if shrinkage is None:
        deviation = np.sqrt((centred**2).mean(0))
        scale = np.where(deviation > 0, deviation, 1)
        shrinkage = _ledoit_wolf(centred / scale)
    return 1 - shrinkage, shrinkage * ((centred / scale) ** 2).sum() / centred.size * scale**2


def _solved(rows: np.ndarray, diagonal: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return what rows^T rows + diag(diagonal) takes to `right` [inputs, columns], as scikit-learn's least squares do.

    An input whose variance is 0 beside that of others, but for rounding, has no part in it: layer norms leave some of
    1e-32. Raises UsageError where no input varies, or the matrix of the others is singular.
    """
    variances = np.einsum("ij,ij->j", rows, rows) + diagonal
    least = np.finfo(np.float64).eps * variances.max()
    varies = variances > len(diagonal) * least
    if varies.all():
        return _solved_of_varying(rows, diagonal, right, least)
    found = np.zeros(right.shape)
    found[varies] = _solved_of_varying(rows[:, varies], diagonal[varies], right[varies], least)
    return found


def _solved_of_varying(rows: np.ndarray, diagonal: np.ndarray, right: np.ndarray, least: float) -> np.ndarray:
    """Return the same of inputs that all vary; no pivot is `least` or below. The rows are used up.

    Of fewer rows than inputs by the identity of Woodbury, whose matrix is [rows, rows]: the covariance of 1,280 inputs
    alone has 13 MB.
    """
    if len(rows) < len(diagonal) and diagonal.min() > least:
        scale = np.sqrt(diagonal)
        rows /= scale
        begun = right / scale[:, None]
        lower = np.linalg.cholesky(np.eye(len(rows)) + rows @ rows.T)
        begun -= rows.T @ np.linalg.solve(lower.T, np.linalg.solve(lower, rows @ begun))
        return begun / scale[:, None]
    try:
        lower = np.linalg.cholesky(rows.T @ rows + np.diag(diagonal))
    except np.linalg.LinAlgError:
        lower = np.zeros((1, 1))
    if not len(lower) or np.diag(lower).min() ** 2 <= least:
        raise UsageError(
            "the features of a class do not differ enough for a covariance: pass more samples of each class (two at "
            "least), or a larger shrinkage",
            page="sessions",
        )
    return np.linalg.solve(lower.T, np.linalg.solve(lower, right))


def _ledoit_wolf(centred: np.ndarray) -> float:
    """Return the shrinkage of Ledoit and Wolf, A well-conditioned estimator for large-dimensional covariance matrices.

    It is the mean squared error of the covariance's elements by the mean square of their distance from a multiple of
    the unit matrix, both estimated of the rows, and at most 1.
    """
    rows, inputs = centred.shape
    if inputs == 1:
        return 0.0
    variance = (centred**2).sum() / rows / inputs
    products = centred @ centred.T if rows < inputs else centred.T @ centred
    squares = (products**2).sum() / rows**2  # of the covariance's elements, which both have
    distance = squares - inputs * variance**2
    error = (((centred**2).sum(1) ** 2).sum() / rows - squares) / rows
    return float(min(error, distance) / distance) if min(error, distance) > 0 else 0.0
