"""Modules that train: PyTorch is the oracle of what they infer and of every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import pocketune
from tests.torch_frontend.training import by_program, by_torch


class ConvNet(nn.Module):
    """Convolutions, batch normalization and what stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(inplace=True),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.MaxPool2d(3, 2, 1),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x).flatten(1))


def test_a_convolutional_net_trains_as_in_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x, y = ConvNet().eval(), torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    program = pocketune.build(module, inputs=(x[:1],), batch=4, loss="sparse_categorical_crossentropy", optimizer="sgd")
    expected = module(x).detach().numpy()
    ours, inferred = by_program(program, tmp_path, x.numpy(), y.numpy().astype(np.int32), 0.05, 3)
    np.testing.assert_allclose(inferred, expected, atol=1e-5)
    theirs = by_torch(module, (x,), y, F.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.05), 3, list(ours.weights))
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)
    assert set(ours.weights) == {name for name, _ in module.named_parameters()}
    for name, weight in ours.weights.items():
        np.testing.assert_allclose(weight, theirs.weights[name], atol=1e-6, err_msg=name)
