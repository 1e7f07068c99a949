"""Random weights for Keras models whose own initial ones let the signal die within a few blocks."""

from __future__ import annotations

from typing import Any

import numpy as np


def randomize(model: Any, seed: int) -> None:
    """Gives each variable a value that a trained net could have; the same seed, the same values."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(_weight(variable.path, tuple(variable.shape), rng))


def _weight(path: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(shape, np.float32)
    match path.rpartition("/")[2]:
        case "kernel" if len(shape) == 4:
            fan_in = shape[0] * shape[1] * (1 if "depthwise" in path else shape[2])
            # A relu6 cuts half of the signal. Projections are added up along the residuals: they start small.
            gain = 0.5 if "project" in path else 2
            return noise * np.float32(np.sqrt(gain / fan_in))
        case "kernel":
            return noise * np.float32(np.sqrt(1 / shape[0]))
        case "gamma" | "moving_variance":
            return np.exp(0.2 * noise)
        case _:
            return 0.1 * noise
