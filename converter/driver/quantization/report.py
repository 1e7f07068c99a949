"""Quantization report: layers that became integers, and the loss of accuracy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from converter.backend.quantize.choose import FrozenLayer
from converter.backend.quantize.stock import StockRunner, batches
from converter.driver.quantization.samples import Samples
from converter.ir import Graph
from converter.program.manifest import MASK

#: Accuracy, or share of equal answers, that may be lost without a warning: one point.
LARGEST_LOSS = 0.01
#: Error of the outputs relative to their size that may pass where there is no accuracy.
LARGEST_ERROR = 0.1


class QuantizationWarning(UserWarning):
    """Fewer bits for frozen weights change what the program answers."""


@dataclass(frozen=True)
class QuantizationReport:
    """What became int8, int4 or float16, and the untrained program on the calibration samples before and after.

    Attributes:
        layers: each frozen layer with weights.
        output_error: of the model's outputs, relative to their size (Euclidean norm); None without samples.
        before, after: `loss` and, for a classifier, `accuracy` in float32 and so; without labels, for a
            classifier, `agreement` with float32's own answers; nothing without samples.
    """

    layers: tuple[FrozenLayer, ...]
    output_error: float | None = None
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """What it does to the outputs on the calibration samples, in words; nothing without samples."""
        if self.output_error is None:
            return ""
        changes = [f"{name} {value:.4g} -> {self.after[name]:.4g}" for name, value in self.before.items()]
        return f"on the calibration samples: {', '.join([*changes, f'outputs {self.output_error:.2%} off'])}"

    def warn(self, stacklevel: int = 2) -> None:
        """Warns when more than one point of accuracy is gone."""
        kind = next((k for k in ("accuracy", "agreement") if k in self.before), None)
        if kind is not None and self.before[kind] - self.after[kind] > LARGEST_LOSS:
            figures = f"{kind} on the calibration samples {self.before[kind]:.1%} -> {self.after[kind]:.1%}"
        elif kind is None and self.output_error is not None and self.output_error > LARGEST_ERROR:
            figures = f"the outputs on the calibration samples are {self.output_error:.1%} off"
        else:
            return
        hint = " Pass calibration=(x, y) to see what it costs in accuracy." if kind == "agreement" else ""
        rounded = next((one.form for one in self.layers if one.form not in ("int8", "dynamic range", "float32")), None)
        way = "Training may make up for it" if rounded else "More samples, more like those in use, may help"
        warnings.warn(
            f"{rounded or 'int8'} for frozen layers: {figures}. {way}; "
            f"frozen='float32' leaves the layers as they are.{hint}",
            QuantizationWarning,
            stacklevel=stacklevel + 1,
        )


def compare(
    before: Graph,
    after: Graph,
    samples: Samples,
    batch: int,
    layers: tuple[FrozenLayer, ...],
    classifies: bool,
    outputs: Sequence[str],
) -> QuantizationReport:
    """Runs both graphs on the samples.

    Args:
        before: lowered; its outputs are the model's and, for labelled samples, those of the loss.
        after: the same in integers.
        samples: calibration samples.
        batch: rows that the graphs take at once.
        layers: for the report.
        classifies: whether the model's output holds logits.
        outputs: names of the model's outputs.
    """
    runs = StockRunner(before), StockRunner(after)
    totals: list[dict[str, float]] = [{}, {}]
    off = size = rows = places = 0.0  # places: the rows, under a mask by the share of them that counts
    for feed, count in batches(samples.rows, batch):
        weight = (np.arange(batch) < count).astype(np.float32)
        results = [run({**feed, "weight": weight} if samples.labelled else feed) for run in runs]
        scores = [(r.get("loss"), r.get("correct")) for r in results]
        masks = [mask[:count] for name, mask in results[0].items() if name.startswith(MASK)]
        places += float(masks[0].mean()) * count if masks else count
        expected, found = ([r[name][:count] for name in outputs] for r in results)
        off += sum(float(np.square(a - b, dtype=np.float64).sum()) for a, b in zip(expected, found, strict=True))
        size += sum(float(np.square(a, dtype=np.float64).sum()) for a in expected)
        rows += count
        for total, (loss, correct), given in zip(totals, scores, (expected, found), strict=True):
            if loss is not None:
                total["loss"] = total.get("loss", 0.0) + float(loss[0]) * count
            if correct is not None:
                total["accuracy"] = total.get("accuracy", 0.0) + float(correct[0])
            elif classifies:
                equal = given[0].argmax(-1) == expected[0].argmax(-1)
                total["agreement"] = total.get("agreement", 0.0) + float(equal.mean()) * count
    first, second = (
        {name: value / (places if name == "accuracy" else rows) for name, value in total.items()} for total in totals
    )
    return QuantizationReport(layers, float(np.sqrt(off / size)) if size else 0.0, first, second)
