"""Calibration samples, checked like the rows of a training session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.ir import Graph, TensorType
from converter.program.manifest import Signature, TensorSpec
from converter.runtime.data.examples import check_examples
from converter.support.errors import UsageError


@dataclass(frozen=True)
class Samples:
    """Rows by input name, with the targets where the user gave them."""

    rows: Mapping[str, np.ndarray]
    labelled: bool


def check_samples(calibration: Any, model: Graph, targets: Mapping[str, TensorType]) -> Samples:
    """Return the samples as the graph takes them.

    Args:
        calibration: x as for `TrainingSession.infer`, or a pair (x, y) as for `TrainingSession.evaluate`.
        model: the forward graph.
        targets: types of a batch of the targets, by name.

    Raises:
        UsageError: there are none, or they are not what the model takes.
    """
    if calibration is None:
        raise UsageError(
            "frozen='int8' needs samples to find the range of each activation: pass calibration=x, about a hundred "
            "inputs as the model takes them, or calibration=(x, y) to have the accuracy measured too; on the command "
            "line --calibration FILE.npz",
            page="quantization",
        )
    x, y = calibration, None
    pair = isinstance(calibration, tuple) and len(calibration) == 2
    if pair and (len(model.inputs) == 1 or isinstance(calibration[0], Mapping | tuple | list)):
        x, y = calibration
    specs = [_spec(v.name, v.type, "input") for v in model.inputs]
    if y is not None:
        specs += [_spec(name, type, "target") for name, type in targets.items()]
    try:
        examples = check_examples(Signature(tuple(specs), ()), x, y)
    except UsageError as error:
        raise UsageError(f"calibration: {error}", page="quantization") from None
    return Samples(examples.arrays, y is not None)


def any_samples(model: Graph) -> dict[str, np.ndarray]:
    """Return one row for each input, floats from 0 to 1 or other types 0: for costs, whatever the numbers are."""
    rng = np.random.default_rng(0)
    floats = {v: np.issubdtype(v.type.dtype, np.floating) for v in model.inputs}
    return {v.name: (rng.random((1, *v.type.shape[1:])) * floats[v]).astype(v.type.dtype) for v in model.inputs}


def _spec(name: str, type: TensorType, role: Any) -> TensorSpec:
    dtype: Any = type.dtype.name
    return TensorSpec(name, type.shape, dtype, role)
