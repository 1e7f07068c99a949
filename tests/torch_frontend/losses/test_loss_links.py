"""Losses of logits behind modules that give probabilities: PyTorch applies the softmax or sigmoid once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pocketune

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 10)).astype(np.float32)
CLASSES = RNG.integers(0, 4, 8)
SHARES = RNG.dirichlet(np.ones(4), 8).astype(np.float32)
BITS = RNG.integers(0, 2, (8, 4)).astype(np.float32)


class Scaled(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.softmax(x, 1) * 1.0


CASES: dict[str, tuple[nn.Module, Any, np.ndarray]] = {
    "softmax": (nn.Softmax(1), nn.CrossEntropyLoss(), CLASSES),
    "shares": (nn.Softmax(1), nn.CrossEntropyLoss(), SHARES),
    "smoothing": (nn.Softmax(1), nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES),
    "weights": (nn.Softmax(1), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4])), CLASSES),
    "a function": (nn.Softmax(1), F.cross_entropy, CLASSES),
    "a part of the module": (Scaled(), nn.CrossEntropyLoss(), CLASSES),
    "another link": (nn.Sigmoid(), nn.CrossEntropyLoss(), CLASSES),
    "clipped": (nn.Sequential(nn.Softmax(1), nn.Hardtanh()), nn.CrossEntropyLoss(), CLASSES),
    "log_softmax": (nn.LogSoftmax(1), nn.CrossEntropyLoss(), CLASSES),
    "sigmoid": (nn.Sigmoid(), nn.BCEWithLogitsLoss(), BITS),
    "softmax before bits": (nn.Softmax(1), nn.BCEWithLogitsLoss(), BITS),
    "margins": (nn.Sigmoid(), nn.MultiLabelSoftMarginLoss(), BITS),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_applied_twice_and_said(name: str) -> None:
    link, loss, y = CASES[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 4), link)
    described = torch.from_numpy(y[:1])
    program = pocketune.build(
        module, inputs=(torch.zeros(1, 10),), loss=loss, y=described, optimizer="sgd", batch=8, check=False
    )
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.5), []
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(module(torch.from_numpy(X)), torch.from_numpy(y))
        value.backward()
        optimizer.step()
        losses.append(float(value))
    with pocketune.TrainingSession(program.data) as session:
        found = [session.train(X, y, 0.5) for _ in range(4)]
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        np.testing.assert_allclose(session.infer(X), module(torch.from_numpy(X)).detach(), atol=1e-6)
    is_said = name not in ("weights", "clipped", "log_softmax", "margins")
    assert any("let the module end in the logits" in note.why for note in program.notes) == is_said
