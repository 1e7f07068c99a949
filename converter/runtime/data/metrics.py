"""Metrics beside the loss, computed from the model's outputs by NumPy, batch by batch."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.program.manifest import TARGET, Manifest
from converter.runtime.data.examples import Examples
from converter.support.errors import UsageError, nearest

#: A name, or a function (y, output) -> a number a row, or one for all rows; or several of these.
Metrics = Any
#: From y and the output of some rows to a number a row, or a row and place.
RowMetric = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Metric(ABC):
    """A number that grows with the rows that were seen."""

    def check(self, y: np.ndarray, weight: np.ndarray) -> None:  # noqa: B027 (most metrics are of any rows)
        """Raises UsageError where rows with these targets and weights have no such number."""

    @abstractmethod
    def add(self, y: np.ndarray, output: np.ndarray, weight: np.ndarray, mask: np.ndarray | None) -> None:
        """Sees some rows, and which of their places count, 1 or 0; None for all."""

    @abstractmethod
    def result(self) -> float:
        """Return the number for all of them."""


class MeanOfRows(Metric):
    """A mean by weight."""

    def __init__(self, of_rows: RowMetric) -> None:
        self._of_rows = of_rows
        self._total = self._weight = 0.0

    def add(self, y: np.ndarray, output: np.ndarray, weight: np.ndarray, mask: np.ndarray | None) -> None:
        if mask is not None:  # labels may be any number where they do not count
            y = np.where(mask.reshape(*mask.shape, *(1,) * (y.ndim - mask.ndim)) > 0, y, 0)
        total, weights = _weighted(self._of_rows(y, output), weight, mask)
        self._total, self._weight = self._total + total, self._weight + weights

    def result(self) -> float:
        return self._total / self._weight if self._weight else 0.0


class OfAllRows(Metric):
    """What needs all rows that weigh something at once."""

    def __init__(self, of_all: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], float]) -> None:
        self._of_all = of_all
        self._seen: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]] = []

    def add(self, y: np.ndarray, output: np.ndarray, weight: np.ndarray, mask: np.ndarray | None) -> None:
        counts = weight > 0
        self._seen.append((y[counts], output[counts], weight[counts], None if mask is None else mask[counts]))

    def result(self) -> float:
        y, output, weight, masks = zip(*self._seen, strict=True)
        mask = None if masks[0] is None else np.concatenate(masks)
        return self._of_all(np.concatenate(y), np.concatenate(output), np.concatenate(weight), mask)


class AreaUnderCurve(OfAllRows):
    """The area under the ROC curve."""

    def __init__(self) -> None:
        super().__init__(_auc)

    def check(self, y: np.ndarray, weight: np.ndarray) -> None:
        answers = y.argmax(-1) if y.ndim > 1 and y.shape[-1] == 2 else (y > 0.5).astype(int)
        answers = answers[weight > 0]
        kinds = np.unique(answers)
        if len(kinds) == 1:
            raise UsageError(
                f"all {len(answers)} rows are of class {kinds[0]}, and the area under the curve compares rows of two "
                "classes: take rows of both, or leave it out",
                page="sessions",
            )


@dataclass(frozen=True)
class Measure:
    """A metric at its place.

    Attributes:
        name: what it is called in the results.
        output: what it compares with the target.
        target: the target's name.
        metric: the metric.
        counted: what the program calls the same among its own figures, if it has it.
        classes: bool [classes], which of them there are, where others may come and a metric with a name leaves these
            out; None for all numbers of the output.
    """

    name: str
    output: str
    target: str
    metric: Metric
    counted: str
    classes: np.ndarray | None = None

    def of_known(self, y: np.ndarray, output: np.ndarray | None = None) -> tuple[np.ndarray, Any]:
        """Return targets and output of the classes that there are, whose labels are their places among these then."""
        if self.classes is None:
            return y, output
        known = np.flatnonzero(self.classes)
        if y.ndim > 1 and y.shape[-1] == len(self.classes):
            y = y[..., known]
        elif y.dtype.kind == "i":
            y = np.where(np.isin(y, known), np.searchsorted(known, y), y)
        return y, None if output is None else output[..., known]

    @contextmanager
    def named(self) -> Iterator[None]:
        """While it lasts, errors say which metric is meant."""
        try:
            yield
        except UsageError as error:
            raise UsageError(f"metrics: {self.name}: {error}", page="sessions") from None


def measures(
    metrics: Metrics, manifest: Manifest, examples: Examples | None, names: Sequence[str] | None = None
) -> list[Measure]:
    """New metrics for a program.

    Args:
        metrics: one or a list of names and functions; for a model of several outputs a dict of these by output.
        manifest: of the program.
        examples: the rows to measure.
        names: of classes by label, empty ones of those that there are not; None where no others come.

    Raises:
        UsageError: an unknown name or output, an output without a target, or rows that have no such number.
    """
    if metrics is None or examples is None:
        return []
    if "infer" not in manifest.calls:
        raise UsageError(
            "metrics need the signature 'infer': build with signatures=('train', 'evaluate', 'infer')", page="sessions"
        )
    outputs = [spec.name for spec in manifest.calls["infer"].giving("output")]
    several, listed = len(outputs) > 1, ", ".join(outputs)
    if isinstance(metrics, Mapping) != several:
        how = f"a dict by output, of {listed}" if several else "a name, a function, or a list of them"
        raise UsageError(f"metrics: pass {how}; got {metrics!r}", page="sessions")
    found: list[Measure] = []
    for output, wanted in metrics.items() if several else [(outputs[0], metrics)]:
        if output not in outputs:
            raise UsageError(
                f"metrics: the model has no output {output!r}.{nearest(str(output), outputs)} It has {listed}.",
                page="sessions",
            )
        for each in wanted if isinstance(wanted, list | tuple) else [wanted]:
            name = each if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
            called = f"{output}_{name}" if several else name
            if called in {"loss", *(m.name for m in found)}:
                raise UsageError(f"metrics: two figures would be called {called!r}", page="sessions")
            target = _target(output, manifest)
            own = each in ("accuracy", "acc") or (
                each == "binary_accuracy" and manifest.losses.get(target, "").startswith("binary_")
            )
            counted = called.removesuffix(name) + "accuracy" if own else ""
            known = np.array(names) != "" if names is not None and isinstance(each, str) else None
            found.append(Measure(called, output, target, _metric(each), counted, known))
    for measure in found:
        with measure.named():
            measure.metric.check(measure.of_known(examples.arrays[measure.target])[0], examples.arrays["weight"])
    return found


def measured(
    measures: list[Measure],
    figures: dict[str, float],
    outputs: Iterator[tuple[slice, dict[str, np.ndarray]]],
    examples: Examples,
    masks: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """Return the program's figures and the metrics; right answers that the program counts are not counted again.

    Args:
        measures: new metrics.
        figures: of `evaluate`.
        outputs: which rows, and what the model gives for them.
        examples: the rows with their targets and weights.
        masks: which places of an output count, by its name, where not all do.
    """
    weight = examples.arrays["weight"]
    others = [m for m in measures if m.counted not in figures]
    for rows, given in outputs if others else ():
        for measure in others:
            with measure.named():
                mask = masks[measure.output][rows] if measure.output in masks else None
                y, output = measure.of_known(examples.arrays[measure.target][rows], given[measure.output])
                measure.metric.add(y, output, weight[rows], mask)
    counted = {m.name: figures[m.counted] for m in measures if m.counted in figures}
    return figures | counted | {measure.name: _result(measure) for measure in others}


def _result(measure: Measure) -> float:
    with measure.named():
        return measure.metric.result()


def _target(output: str, manifest: Manifest) -> str:
    names = [spec.name for spec in manifest.targets]
    if names == [TARGET]:
        return TARGET
    if f"{TARGET}/{output}" not in names:
        raise UsageError(
            f"metrics: the output {output} has no target to compare it with; there are {', '.join(names)}",
            page="sessions",
        )
    return f"{TARGET}/{output}"


def _metric(given: Any) -> Metric:
    if callable(given):
        return OfAllRows(lambda y, output, weight, mask: _by_function(given, y, output, weight, mask))
    if not isinstance(given, str):
        raise UsageError(f"metrics: expected a name or a function (y, output), got {given!r}", page="sessions")
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", given).lower()
    if name == "auc":
        return AreaUnderCurve()
    if top := re.fullmatch(r"top_([1-9]\d*)", name):
        return MeanOfRows(_top(int(top[1])))
    if name not in _OF_ROWS:
        known = [*_OF_ROWS, "auc", "top_5"]
        raise UsageError(
            f"metrics: unknown name {given!r}.{nearest(name, known)} Known: {', '.join(known)}.", page="sessions"
        )
    return MeanOfRows(_OF_ROWS[name])


def _weighted(values: Any, weight: np.ndarray, mask: np.ndarray | None) -> tuple[float, float]:
    """Return the weighed sum of means of rows, or of the places that a mask leaves, and the sum of the weights."""
    array = np.asarray(values, np.float64)
    weights = weight.astype(np.float64)
    if mask is not None and array.shape[: mask.ndim] == mask.shape:
        array = array.reshape(*mask.shape, -1).mean(-1)
        weights = mask * weights.reshape(-1, *(1,) * (mask.ndim - 1))
        return float((array * weights).sum()), float(weights.sum())
    return float((array.reshape(len(weight), -1).mean(1) * weights).sum()), float(weights.sum())


def _by_function(
    function: Callable[..., Any], y: np.ndarray, output: np.ndarray, weight: np.ndarray, mask: np.ndarray | None
) -> float:
    value = np.asarray(function(y, output))
    if not value.ndim:
        return float(value)
    if len(value) != len(weight):
        raise UsageError(
            f"a function gave {list(value.shape)} for {len(weight)} rows, not a number for each", page="sessions"
        )
    total, weights = _weighted(value, weight, mask)
    return total / weights if weights else 0.0


def _shape(array: np.ndarray) -> str:
    """In words; metrics see the rows in parts."""
    return f"[{', '.join(['rows', *map(str, array.shape[1:])])}]"


def _labels(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Return the right answers: y itself, or the place of the one in its rows."""
    if y.shape == output.shape and y.ndim > 1:
        return y.argmax(-1)
    if y.shape != output.shape[:-1]:
        raise UsageError(f"y {_shape(y)} are no labels or one-hot rows of an output {_shape(output)}", page="sessions")
    if (y < 0).any():
        raise UsageError(
            "labels below 0 are places that the loss leaves out, and this metric would count them: pass a "
            "function (y, output) that leaves them out too",
            page="sessions",
        )
    return y


def _like(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    if y.shape != output.shape:
        raise UsageError(f"y {_shape(y)} is not like the output {_shape(output)}", page="sessions")
    return y.astype(np.float64)


def _accuracy(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    """As Keras understands the word: by the shapes."""
    two = y.shape == output.shape and output.shape[-1:] in ((1,), output.shape)
    return _binary_accuracy(y, output) if two else _categorical_accuracy(y, output)


def _categorical_accuracy(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    return output.argmax(-1) == _labels(y, output)


def _binary_accuracy(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    return (output > 0.5) == (_like(y, output) > 0.5)


def _top(k: int) -> RowMetric:
    """Return whether fewer than k numbers of a row are larger than that of the right answer."""

    def right(y: np.ndarray, output: np.ndarray) -> np.ndarray:
        answer = np.take_along_axis(output, _labels(y, output)[..., None], -1)
        return (output > answer).sum(-1) < k

    return right


def _absolute_error(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    return np.abs(output - _like(y, output))


def _squared_error(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    return np.square(output - _like(y, output))


def _auc(y: np.ndarray, output: np.ndarray, weight: np.ndarray, mask: np.ndarray | None) -> float:
    """Return the area under the ROC curve: the share of pairs in which the row of class 1 scores higher.

    Ties count half.

    Keras' does not look at masks either.
    """
    if output.shape[1:] == (2,):  # two scores a row: what counts is the difference
        y, output = _labels(y, output), output[:, 1] - output[:, 0]
    if output.size != y.size:
        raise UsageError(
            f"it is of one score a row, or of two classes; the output is {_shape(output)}", page="sessions"
        )
    positive, scores = _like(y, output.reshape(y.shape)).reshape(-1) > 0.5, output.reshape(-1)
    weights = np.repeat(weight.astype(np.float64), len(scores) // len(weight))
    _, place = np.unique(scores, return_inverse=True)
    ones, zeros = (np.bincount(place, weights * kind, place.max() + 1) for kind in (positive, ~positive))
    pairs = ones.sum() * zeros.sum()
    return float((ones * (zeros.cumsum() - zeros / 2)).sum() / pairs)


_OF_ROWS: dict[str, RowMetric] = {
    "accuracy": _accuracy,
    "acc": _accuracy,
    "sparse_categorical_accuracy": _categorical_accuracy,
    "categorical_accuracy": _categorical_accuracy,
    "binary_accuracy": _binary_accuracy,
    "top_k_categorical_accuracy": _top(5),
    "sparse_top_k_categorical_accuracy": _top(5),
    "mae": _absolute_error,
    "mean_absolute_error": _absolute_error,
    "mse": _squared_error,
    "mean_squared_error": _squared_error,
}
