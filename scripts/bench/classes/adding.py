"""Accuracy before and after a class comes, and that of a head that is trained again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from class_tasks import Rows
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

import converter
from converter.runtime import TrainingSession

#: How loosely a head's weights may be held to 0: scikit-learn's C.
_LOOSE = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0)


class Right(NamedTuple):
    """Shares of held-out rows that are right: of the own classes, of the added one (0 before it is there), of all."""

    own: float
    added: float
    all: float


class Problem(NamedTuple):
    """A class that comes: rows with labels as the program has them, the added class behind its own ones.

    Attributes:
        own: samples of the own classes.
        few: those of the class that comes, inputs alone.
        held_out: rows of all these classes.
    """

    own: Rows
    few: np.ndarray
    held_out: Rows


class RememberingSession(TrainingSession):
    """A session in which the frozen first layers run once for each row that is ever given."""

    def __init__(self, program: bytes) -> None:
        super().__init__(program)
        self._seen: dict[bytes, np.ndarray] = {}

    def features(self, x: Any) -> np.ndarray:
        """Return what the last layer reads, [rows, inputs]."""
        keys = [row.tobytes() for row in x]
        new = {key: place for place, key in enumerate(keys) if key not in self._seen}
        if new:
            made = super().features(np.stack([x[place] for place in new.values()]))
            self._seen.update(zip(new, np.reshape(made, (len(new), -1)), strict=True))
        return np.stack([self._seen[key] for key in keys])

    def right(self, rows: Rows, own: int) -> Right:
        """Return the accuracy of the head as it is now, by the features of rows."""
        head, found = self.manifest.head, self.parameters()
        kernel = found[head.kernel] if head.axis == 1 else found[head.kernel].T
        return right((self.features(rows.x) @ kernel + found[head.bias]).argmax(1), rows.y, own)


def right(answers: np.ndarray, labels: np.ndarray, own: int) -> Right:
    """Return the accuracy of labels that were answered; those below `own` are of own classes."""
    hits, is_own = answers == labels, labels < own
    return Right(float(hits[is_own].mean()), float(hits[~is_own].mean()), float(hits.mean()))


def program_of(model: Any, own: int) -> bytes:
    """Return the program of a model with room for one class beside its own."""
    return converter.build(
        model,
        loss="sparse_categorical_crossentropy",
        optimizer="adam",
        update="head",
        head="class_means",
        classes=f"{own}+1",
        batch=32,
        target="tflite-2.16",
        check=False,
    ).data


def problem(
    samples: Rows, held_out: Rows, own: Sequence[int], added: int, of_each: int, few: int, seed: int
) -> Problem:
    """Return a choice of samples.

    Args:
        samples: rows to choose from, with the data's labels.
        held_out: rows to judge on, with these labels too.
        own: of these, the classes of the program in order.
        added: the class that comes.
        of_each: samples of an own class.
        few: samples of the one that comes.
        seed: of the choice.
    """
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(samples.y == label))[:of_each] for label in own]
    new = rng.permutation(np.flatnonzero(samples.y == added))[:few]
    named = np.full(max(*own, added) + 1, -1)
    named[[*own, added]] = range(len(own) + 1)
    places = np.concatenate(chosen)
    judged = np.isin(held_out.y, [*own, added])
    return Problem(
        Rows(samples.x[places], named[samples.y[places]]),
        samples.x[new],
        Rows(held_out.x[judged], named[held_out.y[judged]]),
    )


class Head:
    """A head that is trained to convergence: scikit-learn's logistic regression on features over their deviation."""

    def __init__(self, loose: float, balanced: bool = False) -> None:
        self._fitted = LogisticRegression(C=loose, max_iter=5000, class_weight="balanced" if balanced else None)
        self._scale = 1.0

    def fit(self, features: np.ndarray, labels: np.ndarray) -> Head:
        """Train it; warnings of weights that would still grow are errors."""
        self._scale = float(features.std())
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            self._fitted.fit(features / self._scale, labels)
        return self

    def answers(self, features: np.ndarray) -> np.ndarray:
        """Return the label of each row."""
        return self._fitted.predict(features / self._scale)


def looseness(session: RememberingSession, rows: Rows) -> float:
    """Return how loosely a head's weights are best held to 0: by three-fold cross-validation on rows."""
    features = session.features(rows.x)
    folds = [*StratifiedKFold(3, shuffle=True, random_state=0).split(features, rows.y)]

    def found(loose: float) -> float:
        heads = ((Head(loose).fit(features[taught], rows.y[taught]), judged) for taught, judged in folds)
        return float(np.mean([(head.answers(features[judged]) == rows.y[judged]).mean() for head, judged in heads]))

    return max(_LOOSE, key=found)


def compared(session: RememberingSession, given: Problem, loose: float) -> dict[str, Right]:
    """Return what the head finds, by what was done to it.

    `trained` is scikit-learn's logistic regression on the own classes' samples, the file's own head; `retrained` the
    same on these and the few, each class with the same weight in all. `means` and `discriminant` are class means and
    the linear discriminant of the own classes, `means + few` the first with `add_class(name, few)`, and `discriminant +
    few` is set anew from the samples of all after `add_class(name)`.

    Args:
        session: of a program with room for a class.
        given: the samples and the rows to judge on.
        loose: of the regressions, see `looseness`.
    """
    own, held_out = int(given.own.y.max()) + 1, given.held_out
    features, judged = session.features(given.own.x), session.features(held_out.x)
    both = Rows(np.concatenate([given.own.x, given.few]), np.append(given.own.y, np.full(len(given.few), own)))
    found: dict[str, Right] = {}
    trained = Head(loose).fit(features, given.own.y)
    found["trained"] = right(trained.answers(judged), held_out.y, own)
    retrained = Head(loose, balanced=True).fit(session.features(both.x), both.y)
    found["retrained"] = right(retrained.answers(judged), held_out.y, own)
    for method, shrinkage in (("means", None), ("discriminant", "auto")):
        session.reset()
        session.set_class_means(given.own.x, given.own.y, shrinkage)
        found[method] = session.right(held_out, own)
        if shrinkage is None:
            session.add_class("added", given.few)
        else:
            session.add_class("added")
            session.set_class_means(both.x, both.y, shrinkage)
        found[f"{method} + few"] = session.right(held_out, own)
    return found
