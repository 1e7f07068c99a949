"""The models of the training tests: small versions of the built-in examples, and what trains of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from examples import EXAMPLES


@dataclass(frozen=True)
class Case:
    """A model at a size that trains in seconds.

    Attributes:
        example: name in `examples.EXAMPLES`.
        options: for its `build` and `sample_batch`.
        learning_rate: for SGD and AdamW: so large that the weights move by far more than the tolerance, so small that
            rounding errors do not grow.
    """

    example: str
    options: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: Mapping[str, float] = field(default_factory=lambda: {"sgd": 0.05, "adamw": 1e-3})

    @cache  # noqa: B019  the cases live as long as the tests
    def model(self) -> Any:
        return EXAMPLES[self.example].build(**self.options)

    def batch(self, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = EXAMPLES[self.example].sample_batch(rows, seed, **self.options)
        return x, y

    def update(self, kind: str) -> Any:
        return EXAMPLES[self.example].sparse if kind == "sparse" else kind

    @property
    def loss(self) -> str:
        return EXAMPLES[self.example].loss

    def __hash__(self) -> int:
        return hash((self.example, *self.options.items()))


GENTLE = {"sgd": 2e-3, "adamw": 2e-4}
CASES = {
    "mlp": Case("mlp"),
    "lenet": Case("lenet"),
    "mobilenetv2-0.35": Case("mobilenetv2", {"alpha": 0.35, "size": 32}, GENTLE),
    "mobilenetv2-1.0": Case("mobilenetv2", {"alpha": 1.0, "size": 32}, GENTLE),
    "flax-cnn": Case("flax-cnn"),
    "encoder": Case("encoder", {"width": 32, "length": 16, "vocabulary": 50}),
    "mcunet": Case("mcunet", {"size": 32, "width": 0.25}, {"sgd": 2e-3, "adamw": 3e-4}),
    "proxylessnas": Case("proxylessnas", {"size": 32, "depth": 4}, {"sgd": 4e-3, "adamw": 2e-4}),
    "vit": Case("vit", {"size": 16, "patch": 8, "layers": 2, "width": 24}),
    "distilbert": Case("distilbert", {"length": 12, "width": 24, "heads": 2, "layers": 1, "vocabulary": 50}),
    "llama": Case("llama", {"length": 12, "width": 32, "heads": 4, "layers": 2, "vocabulary": 50}),
}

#: Left to the slow run: another net of the same blocks is always there.
LIKE_ANOTHER = ("mobilenetv2-1.0", "mcunet", "proxylessnas")
#: The names, as parameters of a test that trains or runs each.
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LIKE_ANOTHER else name for name in CASES]
