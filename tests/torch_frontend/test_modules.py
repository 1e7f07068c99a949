"""Modules that train: PyTorch is the oracle of what they infer and of every step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketune
from scripts.torch.steps import Task, by_program, by_torch


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
    module = ConvNet().eval()
    task = Task((torch.randn(4, 3, 16, 16),), torch.randint(0, 5, (4,)), nn.CrossEntropyLoss())
    optimizer = partial(torch.optim.SGD, lr=0.05)
    program = pocketune.build(
        module, inputs=task.inputs, batch=4, loss=task.loss, optimizer=optimizer(module.parameters())
    )
    ours, inferred = by_program(program, tmp_path, task, 3)
    np.testing.assert_allclose(inferred, task.output(module).detach().numpy(), atol=1e-5)
    theirs = by_torch(module, task, optimizer, list(ours.weights), 3)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)
    assert set(ours.weights) == {name for name, _ in module.named_parameters()}
    for name, weight in ours.weights.items():
        np.testing.assert_allclose(weight, theirs.weights[name], atol=1e-6, err_msg=name)


def test_pictures_are_turned_once() -> None:
    """The input; and batch norms are folded, which transposes of each convolution would forbid."""
    program = pocketune.build(
        ConvNet().eval(),
        inputs=(torch.zeros(1, 3, 16, 16),),
        loss="mse",
        batch=4,
        check=False,
        signatures=("infer", "train"),
    )
    kinds = [node.op.name for node in program.signatures["infer"].nodes]
    assert kinds.count("Transpose") == 1
    assert kinds.count("Conv2D") + kinds.count("DepthwiseConv2D") == 2
    assert not {"Sub", "Rsqrt", "Div"} & set(kinds)


def test_a_hardtanh_is_flat_at_its_ends(tmp_path: Path) -> None:
    """Where jnp.clip has half a slope: at 0 and at 6, which nets meet often."""
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU6(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(3))
        module[0].bias.zero_()
    task = Task((torch.tensor([[0.0, 6.0, 3.0], [6.0, 0.0, -1.0]]),), torch.tensor([0, 1]), nn.CrossEntropyLoss())
    optimizer = partial(torch.optim.SGD, lr=0.5)
    program = pocketune.build(
        module, inputs=task.inputs, batch=2, loss=task.loss, optimizer=optimizer(module.parameters()), check=False
    )
    ours, _ = by_program(program, tmp_path, task, 1)
    theirs = by_torch(module, task, optimizer, list(ours.weights), 1)
    for name, weight in ours.weights.items():
        np.testing.assert_allclose(weight, theirs.weights[name], atol=1e-6, err_msg=name)


class Masked(nn.Module):
    """Layers of PyTorch that look whether a mask is causal, by its numbers."""

    def __init__(self, is_causal: bool | None) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), 1)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True), 1)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(5))
        self.register_buffer("other", self.causal.roll(1, 1).fill_diagonal_(0.5))
        self.is_causal = is_causal

    def forward(self, x: Any) -> Any:
        encoded = self.encoder(x, mask=self.causal, is_causal=self.is_causal)
        return self.decoder(x, encoded, tgt_mask=self.other, memory_mask=self.causal).mean(1)


@pytest.mark.parametrize("is_causal", [None, True])
def test_masks_of_transformers_are_what_they_are(is_causal: bool | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Masked(is_causal).eval()
    task = Task((torch.randn(2, 5, 4),), torch.randn(2, 4), nn.MSELoss())
    optimizer = partial(torch.optim.SGD, lr=0.1)
    program = pocketune.build(
        module, inputs=task.inputs, batch=2, loss=task.loss, optimizer=optimizer(module.parameters()), check=False
    )
    ours, inferred = by_program(program, tmp_path, task, 2)
    np.testing.assert_allclose(inferred, task.output(module).detach().numpy(), atol=1e-5)
    theirs = by_torch(module, task, optimizer, list(ours.weights), 2)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)
    for name, weight in ours.weights.items():
        np.testing.assert_allclose(weight, theirs.weights[name], atol=2e-6, err_msg=name)
