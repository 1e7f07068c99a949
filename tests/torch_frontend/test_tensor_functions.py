"""Functions of whole tensors: values and gradients are PyTorch's, in double precision, by one build for each group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketune
from tests.torch_frontend.tensor_functions import GROUPS, Case


class Functions(nn.Module):
    """What each function gives of weights of its own, one behind the other, times the input."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(3)
        self.cases = cases
        self.weights = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.randn(shape, generator=drawn)) for shape in case.shapes)
            for case in cases
        )

    def forward(self, x: Any) -> Any:
        given = [case.function(*weights) for case, weights in zip(self.cases, self.weights, strict=True)]
        return torch.cat([y.reshape(1, -1) for y in given], 1) * x


@pytest.mark.quick
@pytest.mark.parametrize("group", GROUPS)
def test_values_and_gradients_are_those_of_pytorch(group: str, tmp_path: Path) -> None:
    module, x = Functions(GROUPS[group]), torch.ones(1, 1)
    factors = torch.randn(module(x).shape[1], generator=torch.Generator().manual_seed(5))
    values, moved = _a_step(module, x, factors, tmp_path / "functions.tflite")
    begin, wrong = 0, {}
    for number, (case, weights) in enumerate(zip(module.cases, module.weights, strict=True)):
        exact = [weight.detach().double().requires_grad_() for weight in weights]
        expected = case.function(*exact).reshape(-1)
        end = begin + len(expected)
        (expected * factors[begin:end]).sum().backward()
        errors = [_error(values[begin:end], expected.detach().numpy(), 1e-5)]
        for place, weight in enumerate(exact):
            gradient = np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
            errors.append(_error(moved.get(f"weights.{number}.{place}", np.zeros(weight.shape)), gradient, 1e-4))
        if any(errors):
            wrong[case.name] = errors
        begin = end
    assert wrong == {}


def _a_step(module: Functions, x: Any, factors: Any, path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return what a program infers, and by how much a step of rate 1 lessens each weight: its gradient."""
    program = pocketune.build(
        module, inputs=(x,), loss=lambda outputs: (outputs * factors).sum(1), optimizer="sgd", batch=1
    )
    program.write(path)
    with pocketune.TrainingSession(path) as session:
        values, before = session.infer(x.numpy())[0], session.parameters()
        session.train(x.numpy(), learning_rate=1.0)
        after = session.parameters()
    return values, {name: before[name] - after[name] for name in before}


def _error(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> float:
    """Return the largest difference in units of one more than their numbers, 0 where it is tolerable."""
    largest = float(np.max(np.abs(ours - theirs) / (1 + np.abs(theirs))))
    return largest if largest > tolerance else 0.0
