"""Quantization of a model's frozen layers, before and among trained ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from converter.backend.quantize.dynamic import quantize_weights, within_loops
from converter.backend.quantize.prefix import quantize_prefix
from converter.backend.targets import Target
from converter.driver.quantization.report import QuantizationReport, compare
from converter.driver.quantization.samples import Samples, check_samples
from converter.ir import Graph
from converter.support.errors import UsageError
from converter.training.losses import JointLoss, Loss, attach_loss
from converter.training.schemes import cut_frozen_prefix, join


class NothingToQuantizeError(UsageError):
    """No frozen layer becomes int8."""

    page = "quantization"


@dataclass(frozen=True)
class Quantized:
    """A model in two parts: `join(prefix, lowered rest)` is the model.

    Attributes:
        prefix: what no parameter takes part in; lowered, int8.
        rest: the semantic graph after it, with the parameters.
        report: what became int8.
    """

    prefix: Graph
    rest: Graph
    report: QuantizationReport


def quantize(
    model: Graph, goal: Loss | JointLoss, calibration: Any, batch: int, target: Target, lower: Callable[[Graph], Graph]
) -> Quantized:
    """Puts what is frozen into int8: whole around convolutions, weights only in dense layers.

    Args:
        model: the forward graph, what is frozen in constants.
        goal: the loss.
        calibration: samples, as for `pocketune.build`.
        batch: rows that the graph takes at once.
        target: whose table decides what pays.
        lower: semantic graph -> TFLite builtins.

    Raises:
        UsageError: the samples are not what the model takes; NothingToQuantizeError: nothing becomes int8.
    """
    samples = samples_of(model, goal, calibration)
    prefix, rest = cut_frozen_prefix(model)
    float_prefix = lower(prefix)
    int8_prefix, layers = quantize_prefix(float_prefix, samples.rows, batch, target)
    int8_rest, others = quantize_weights(rest, target)
    layers = (*layers, *others, *within_loops(model))
    if all(layer.form == "float32" for layer in layers):
        reasons = "; ".join(dict.fromkeys(layer.why for layer in layers)) or "there is none with weights"
        raise NothingToQuantizeError(f"frozen='int8' changes nothing: no frozen layer becomes int8 ({reasons})")

    def whole(front: Graph, suffix: Graph) -> Graph:
        """With the outputs that are compared."""
        return join(front, lower(attach_loss(suffix, goal) if samples.labelled else suffix))

    before, after = whole(float_prefix, rest), whole(int8_prefix, int8_rest)
    return Quantized(
        int8_prefix, int8_rest, compare(before, after, samples, batch, layers, goal.classifies, list(model.outputs))
    )


def quantize_plain(
    model: Graph, samples: Samples, batch: int, target: Target, lower: Callable[[Graph], Graph]
) -> Graph:
    """Return the same of the model that is exported, lowered; its merged weights stay float32.

    The arguments are as above, but for `samples`, which have been checked.
    """
    prefix, rest = cut_frozen_prefix(model)
    int8_prefix, _ = quantize_prefix(lower(prefix), samples.rows, batch, target)
    int8_rest, _ = quantize_weights(rest, target)
    return join(int8_prefix, lower(int8_rest))


def samples_of(model: Graph, goal: Loss | JointLoss, calibration: Any) -> Samples:
    """Return calibration samples as a model and its loss take them. Raise UsageError for others."""
    targets = {name: type for term in goal.terms(model) for name, type in term.targets(model).items()}
    return check_samples(calibration, model, targets)
