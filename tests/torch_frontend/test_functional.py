"""Operators in place: what is written into views, inputs and values that are read later is what PyTorch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from converter.frontends import torch as torch_frontend
from converter.frontends.torch import exporting
from converter.ir.evaluate import evaluate_outputs

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def _own(x: Any) -> Any:
    y = x * 2
    y.add_(1).relu_()
    return y.mul_(x)


def _of_a_view(x: Any) -> Any:
    y = x * 2
    y.view(-1).mul_(3)
    return y + 1


def _under_a_view(x: Any) -> Any:
    y = x * 2
    flat = y.view(2, 12)
    y.add_(1)
    return flat.sum(1)


def _of_a_part(x: Any) -> Any:
    y = x * 2
    y[:, 0].sub_(1)
    y[:, 1:].clamp_(min=0)
    return y


def _read_before(x: Any) -> Any:
    y = x * 2
    z = y + 1
    y.relu_()
    return y + z


def _filled(x: Any) -> Any:
    y = torch.zeros_like(x)
    y[:, 1] += x[:, 1]
    return y + x.clone().fill_(2)


def _chunks(x: Any) -> Any:
    first, second = (x + 0).chunk(2, -1)
    first.mul_(second)
    return torch.cat((first, second), -1)


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("function", [_own, _of_a_view, _under_a_view, _of_a_part, _read_before, _filled, _chunks])
def test_what_is_written_in_place_is_read_as_in_pytorch(function: Callable[[Any], Any]) -> None:
    graph = torch_frontend.import_torch(torch_frontend.Model(Called(function), (X,)), 2).graph
    (made,) = evaluate_outputs(graph, [X.numpy()])
    np.testing.assert_allclose(made, function(X).numpy(), rtol=1e-6)


def test_plain_graphs_are_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(*_: Any) -> None:
        raise AssertionError("decomposed")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", traced)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2))
    program = exporting.export_module(module, (torch.zeros(2, 2, 4, 4),), {})
    exporting.lowered(program, list(torch_frontend.interpreter.RULES))
    with pytest.raises(AssertionError, match="decomposed"):
        exporting.lowered(exporting.export_module(Called(_of_a_view), (X,), {}), list(torch_frontend.interpreter.RULES))
