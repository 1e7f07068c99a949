"""Functions of whole tensors: values and gradients are PyTorch's, in double precision, by one build for each group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch_frontend.layers.judged_layers import a_step, error_of
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
def test_values_and_gradients_are_those_of_pytorch(group: str) -> None:
    module = Functions(GROUPS[group])
    factors = torch.randn(module(torch.ones(1, 1)).shape[1], generator=torch.Generator().manual_seed(5))
    values, moved = a_step(module, factors)
    begin, wrong = 0, {}
    for number, (case, weights) in enumerate(zip(module.cases, module.weights, strict=True)):
        exact = [weight.detach().double().requires_grad_() for weight in weights]
        expected = case.function(*exact).reshape(-1)
        end = begin + len(expected)
        (expected * factors[begin:end]).sum().backward()
        errors = [error_of(values[begin:end], expected.detach().numpy(), 1e-5)]
        for place, weight in enumerate(exact):
            gradient = np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
            errors.append(error_of(moved.get(f"weights.{number}.{place}", np.zeros(weight.shape)), gradient, 1e-4))
        if any(errors):
            wrong[case.name] = errors
        begin = end
    assert wrong == {}
