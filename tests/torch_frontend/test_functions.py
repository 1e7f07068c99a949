"""Functions of single elements: values and gradients are PyTorch's, where there is one derivative.

All are in one module, each with points of its own as a weight, so that they are exported and compiled once. Kinks and
ties are in test_kinks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketune

_ALL = (-2.3, -0.9, -0.31, 0.42, 1.1, 2.6)
_ABOVE = (0.11, 0.35, 0.9, 1.3, 2.2, 4.5)
_INSIDE = (-0.93, -0.6, -0.2, 0.15, 0.55, 0.9)
_PART = (0.05, 0.2, 0.45, 0.6, 0.8, 0.97)


def with_a_sign(x: Any) -> Any:
    """Signs of a tensor and of a number."""
    return torch.copysign(x, -x) + torch.copysign(x * x, -2)


#: Functions by the points at which they are looked at.
FUNCTIONS: dict[tuple[float, ...], tuple[Callable[[Any], Any], ...]] = {
    _ALL: (
        *(
            torch.arctan,
            torch.asinh,
            torch.cos,
            torch.cosh,
            torch.deg2rad,
            torch.erf,
            torch.erfc,
            torch.exp,
            torch.exp2,
        ),
        *(torch.expm1, torch.neg, torch.rad2deg, torch.sigmoid, torch.sin, torch.sinc, torch.sinh, torch.square),
        *(torch.tan, torch.tanh, torch.abs, torch.frac, torch.trunc, torch.round, torch.ceil, torch.floor, torch.sign),
        *(nn.functional.gelu, nn.functional.silu, nn.functional.mish, nn.functional.softplus, nn.functional.softsign),
        *(
            nn.functional.logsigmoid,
            nn.functional.elu,
            nn.functional.selu,
            nn.functional.celu,
            nn.functional.tanhshrink,
        ),
        with_a_sign,
    ),
    _ABOVE: (
        *(torch.log, torch.log10, torch.log1p, torch.log2, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.lgamma),
        torch.digamma,
    ),
    _INSIDE: (torch.acos, torch.asin, torch.atanh, torch.erfinv),
    _PART: (torch.logit,),
}
_CASES = [(one, points) for points, several in FUNCTIONS.items() for one in several]
_NAMES = [one.__name__ for one, _ in _CASES]


class Functions(nn.Module):
    """Each function of its points, times these, without which flat ones had no gradient, and times the input."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.ParameterList([nn.Parameter(torch.tensor(points)) for _, points in _CASES])

    def forward(self, x: Any) -> Any:
        return torch.stack([one(w) * w * x for (one, _), w in zip(_CASES, self.points, strict=True)], 1)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, list[np.ndarray]]:
    """What a program computes of them, and the gradients by which a step at rate 1 moves the points."""
    path: Path = tmp_path_factory.mktemp("functions") / "functions.tflite"
    module, x = Functions(), torch.ones(1, len(_ALL))
    program = pocketune.build(module, inputs=(x,), loss=lambda outputs: outputs.sum((1, 2)), optimizer="sgd", batch=1)
    program.write(path)
    with pocketune.TrainingSession(path) as session:
        values = session.infer(x.numpy())
        before = session.parameters()
        session.train(x.numpy(), learning_rate=1.0)
        after = session.parameters()
    return values[0], [before[f"points.{n}"] - after[f"points.{n}"] for n in range(len(_CASES))]


@pytest.mark.parametrize("number", range(len(_CASES)), ids=_NAMES)
def test_values_and_gradients_are_those_of_pytorch(number: int, here: Any) -> None:
    (function, points), (values, gradients) = _CASES[number], here
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    y = function(x) * x
    y.sum().backward()
    np.testing.assert_allclose(values[number], y.detach(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(gradients[number], x.grad, rtol=1e-4, atol=5e-6)
