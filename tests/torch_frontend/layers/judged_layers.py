"""Judges random layers: values and gradients of one step beside PyTorch in double precision.

`python -m tests.torch_frontend.layers.judged_layers FIRST COUNT` judges groups of so many seeds, a line for each layer
that is wrong or refused.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pocketune
from converter.support.errors import PocketuneError
from tests.torch_frontend.layers.random_layers import Layer, draw


class Layers(nn.Module):
    """Layers, each with tensors of its own: what all of them give, one behind the other, times the input."""

    def __init__(self, layers: list[Layer], seed: int) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(layer.module for layer in layers)
        self.given = nn.ModuleList(
            nn.ParameterList(nn.Parameter(torch.randn(shape, generator=drawn)) for shape in layer.shapes)
            for layer in layers
        )

    def each(self) -> list[Any]:
        """Return what each layer gives, flat."""
        return [layer(*given).reshape(-1) for layer, given in zip(self.layers, self.given, strict=True)]

    def forward(self, x: Any) -> Any:
        return torch.cat(self.each()) * x


def judge(layers: list[Layer], seed: int) -> dict[str, str]:
    """Return what is wrong with some layers, or why they are refused, by layer: values and gradients of one step.

    Args:
        layers: they are one build; where it is refused each is one.
        seed: of the numbers that they are given.
    """
    module = Layers(layers, seed).eval()
    exact = copy.deepcopy(module).double()
    expected = exact.each()
    factors = torch.randn(sum(len(y) for y in expected), generator=torch.Generator().manual_seed(seed + 1))
    try:
        values, moved = a_step(module, factors)
    except PocketuneError as error:
        if len(layers) == 1:
            return {str(layers[0]): f"refused: {error}"}
        return {layer: why for each in layers for layer, why in judge([each], seed).items()}
    (torch.cat(expected) * factors).sum().backward()
    gradients = dict(exact.named_parameters())
    found, begin = {}, 0
    for number, (layer, wanted) in enumerate(zip(layers, expected, strict=True)):
        end = begin + len(wanted)
        wrong = [("value", error_of(values[begin:end], wanted.detach().numpy(), 2e-5))]
        for name, parameter in gradients.items():
            if name.startswith((f"layers.{number}.", f"given.{number}.")):
                gradient = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
                wrong.append((name, error_of(moved.get(name, np.zeros(parameter.shape)), gradient, 2e-4)))
        if any(error for _, error in wrong):
            found[str(layer)] = f"wrong: {[(name, error) for name, error in wrong if error]}"
        begin = end
    return found


def a_step(module: nn.Module, factors: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return what a program infers of one, and by how much a step of rate 1 lessens each weight: its gradient.

    Args:
        module: takes [1, 1], gives [1, numbers].
        factors: of the numbers, which are added up so.
    """
    x = torch.ones(1, 1)
    program = pocketune.build(
        module, inputs=(x,), loss=lambda outputs: (outputs * factors).sum(1), optimizer="sgd", batch=1, check=False
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "layers.tflite")
        program.write(path)
        with pocketune.TrainingSession(path) as session:
            values, before = session.infer(x.numpy())[0], session.parameters()
            session.train(x.numpy(), learning_rate=1.0)
            after = session.parameters()
    return values, {name: before[name] - after[name] for name in before}


def error_of(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> float:
    """Return the largest difference in units of one more than their numbers, 0 where it is tolerable."""
    largest = float(np.max(np.abs(ours - theirs) / (1 + np.abs(theirs)), initial=0.0))
    return 0.0 if largest <= tolerance else largest


def _judged(first: int, count: int) -> Iterator[str]:
    for seed in range(first, first + count):
        for layer, why in judge(draw(seed), seed).items():
            yield f"{seed}: {layer}: {why}"


if __name__ == "__main__":
    for line in _judged(int(sys.argv[1]), int(sys.argv[2])):
        print(line.replace("\n", " "), flush=True)
