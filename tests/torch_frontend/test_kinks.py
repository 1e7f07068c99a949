"""Derivatives where there are several, or none: at kinks, ties and roots of 0 a step takes PyTorch's own choice."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pocketune

_SIGNS = [0.0, 1.0, -1.0]
_TIES = [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [3.0, 1.0, 1.0]]
_FEW = [[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 2.0, 0.0], [3.0, 1.0, 3.0, 0.0], [3.0, 0.0, 0.0, 3.0]]
_PAIRS = [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]]
_LENGTHS = [[0.0, 0.0], [3.0, -4.0], [0.0, 2.0]]
_VECTORS = [[[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]], [[1.0, 2.0], [4.0, 3.0], [0.0, 0.0]]]
_THREE = [[1.0, 0.0, 2.0, 1.5, 1.0, 3.0, 2.0], [1.0, 1.0, 1.0, 2.0, 1.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0]]


def _image(function: Callable[..., Any], *options: Any, **named: Any) -> Callable[[Any], Any]:
    return lambda x: function(x[None, None], *options, **named)


#: A function of a tensor, and where it is looked at.
KINKS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "abs": (torch.abs, _SIGNS),
    "adaptive_max_pool": (_image(F.adaptive_max_pool2d, 2), _FEW),
    "adaptive_max_pool of all": (_image(F.adaptive_max_pool2d, 1), _FEW),
    "adaptive_max_pool of parts": (_image(F.adaptive_max_pool2d, 3), _FEW),
    "amax": (lambda x: x.amax(-1), _TIES),
    "amin of all": (lambda x: x.amin((0, 1)), _TIES),
    "cdist": (lambda x: torch.cdist(x[0], x[1]), _VECTORS),
    "celu": (lambda x: F.celu(x, 2.0), _SIGNS),
    "clamp": (lambda x: x.clamp(-1.0, 2.0), [-1.0, 2.0, 0.0, 3.0, -2.0]),
    "clamp above": (lambda x: x.clamp(min=0.0), _SIGNS),
    "clamp below": (lambda x: x.clamp(max=1.0), _SIGNS),
    "clamp by tensors": (lambda x: torch.clamp(x[0], x[1], x[2]), _THREE),
    "clamp by a tensor": (lambda x: torch.clamp(x[0], min=x[1]), _PAIRS),
    "clamp crossing": (lambda x: x.clamp(2.0, 1.0) * x, [0.0, 1.0, 1.5, 2.0, 3.0]),
    "clamp to 0 and 6": (lambda x: torch.clip(x, 0.0, 6.0), [0.0, 6.0, 1.0]),
    "copysign": (lambda x: torch.copysign(x[0], x[1]), [[0.0, 0.0, 2.0, -1.0], [-1.0, 2.0, -0.0, 0.0]]),
    "cosine_similarity": (lambda x: F.cosine_similarity(x[0], x[1], dim=-1), _VECTORS),
    "cosine_similarity of short ones": (lambda x: F.cosine_similarity(x[0], x[1], dim=-1, eps=5.0), _VECTORS),
    "cumprod": (lambda x: x.cumprod(-1), [[1.0, 0.0, 2.0], [0.0, 2.0, 0.0]]),
    "dist": (lambda x: torch.dist(x[0], x[1]), [[1.0, 2.0], [1.0, 2.0]]),
    "elu": (lambda x: F.elu(x, 2.0), _SIGNS),
    "fmax": (lambda x: torch.fmax(x[0], x[1]), _PAIRS),
    "fmin": (lambda x: torch.fmin(x[0], x[1]), _PAIRS),
    "hardshrink": (F.hardshrink, [-0.5, 0.5, 0.0, 1.0]),
    "hardsigmoid": (F.hardsigmoid, [-3.0, 3.0, 0.0]),
    "hardswish": (F.hardswish, [-3.0, 3.0, 0.0, 4.0]),
    "hardtanh": (lambda x: F.hardtanh(x, -2.0, 0.5), [-2.0, 0.5, 0.0]),
    "hinge": (lambda x: F.hinge_embedding_loss(x, torch.tensor([1.0, -1, -1]), reduction="none"), [0.0, 1.0, 0.5]),
    "hypot": (lambda x: torch.hypot(x[0], x[1]), [[0.0, 3.0], [1.0, 4.0]]),
    "index twice": (lambda x: x[torch.tensor([0, 0, 1])], _SIGNS),
    "l1": (lambda x: F.l1_loss(x[0], x[1], reduction="none"), _PAIRS),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), _SIGNS),
    "leaky_relu rising": (lambda x: F.leaky_relu(x, -0.3), _SIGNS),
    "logaddexp": (lambda x: torch.logaddexp(x[0], x[1]), _PAIRS),
    "lp_pool": (_image(F.lp_pool2d, 2, 2), [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]),
    "margin": (lambda x: F.margin_ranking_loss(x[0], x[1], torch.tensor([1.0, 1, -1]), reduction="none"), _PAIRS),
    "max": (lambda x: x.max(), _FEW),
    "max along": (lambda x: x.max(-1)[0], _TIES),
    "max_pool": (_image(F.max_pool2d, 3, 1, 1), _FEW),
    "maximum": (lambda x: torch.maximum(x[0], x[1]), _PAIRS),
    "median": (lambda x: x.median(-1)[0], [*_TIES, [2.0, 1.0, 2.0]]),
    "min along": (lambda x: x.min(0)[0], _TIES),
    "minimum": (lambda x: torch.minimum(x[0], x[1]), _PAIRS),
    "norm": (lambda x: x.norm(dim=-1), _LENGTHS),
    "norm of 1": (lambda x: x.norm(1, dim=-1), _LENGTHS),
    "norm of 3": (lambda x: x.norm(3, dim=-1), _LENGTHS),
    "norm of 1.5": (lambda x: x.norm(1.5), _LENGTHS),
    "norm of infinity": (lambda x: x.norm(inf, dim=-1), _LENGTHS),
    "normalize": (lambda x: F.normalize(x, dim=-1, eps=0.5), _LENGTHS),
    "pairwise_distance": (lambda x: F.pairwise_distance(x[0], x[1]), _VECTORS),
    "pow of tensors": (lambda x: x[0] ** x[1], [[0.0, 2.0, 1.0, 0.0, 0.0], [2.0, 0.0, 1.0, 0.0, 1.0]]),
    "pow of 0": (lambda x: x**1.5 + 0.0 ** (1 + x), [0.0, 1.0]),
    "prelu": (lambda x: F.prelu(x[:3], x[3:]), [0.0, 1.0, -1.0, 0.2]),
    "prod": (lambda x: x.prod(-1), [[1.0, 0.0, 2.0], [0.0, 2.0, 0.0]]),
    "relu": (F.relu, _SIGNS),
    "relu6": (F.relu6, [0.0, 6.0, 1.0]),
    "relu and max_pool": (lambda x: F.max_pool2d(F.relu(x - 1)[None, None], 2), _FEW),
    "remainder": (lambda x: x.remainder(1.0) + torch.fmod(x, 1.0), [0.0, 1.0, 1.5]),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), _SIGNS),
    "selu": (F.selu, _SIGNS),
    "sign": (lambda x: torch.sign(x) * x, _SIGNS),
    "sinc": (torch.sinc, [0.0, 0.5]),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x[0], x[1], reduction="none"), _PAIRS),
    "softplus": (lambda x: F.softplus(x, 2.0, 6.0), [3.0, 0.0, 3.1]),
    "softshrink": (F.softshrink, [-0.5, 0.5, 0.0, 1.0]),
    "softsign": (F.softsign, _SIGNS),
    "sort": (lambda x: x.sort(-1)[0], _TIES),
    "sort descending": (lambda x: x.sort(0, descending=True)[0], _TIES),
    "std": (lambda x: x.std(-1), [*_TIES, [1.0, 1.0, 1.0]]),
    "threshold": (lambda x: F.threshold(x, 0.5, 7.0), [0.5, 0.6, 0.4]),
    "topk": (lambda x: x.topk(1)[0], _TIES),
    "triplet": (lambda x: F.triplet_margin_loss(*x, reduction="none"), [_VECTORS[0], _VECTORS[1], _VECTORS[0]]),
    "where": (lambda x: torch.where(x > 0, x, 2 * x), _SIGNS),
}


class Kinks(nn.Module):
    """All functions, of a parameter each."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.ParameterList([nn.Parameter(torch.tensor(at)) for _, at in KINKS.values()])

    def forward(self, x: Any) -> Any:
        return torch.cat([f(p).reshape(-1) for (f, _), p in zip(KINKS.values(), self.at, strict=True)])[None] + x


def weighed(outputs: Any, y: Any) -> Any:
    """Return the sum of all outputs, each by a factor of its own."""
    return (outputs * (1 + torch.arange(outputs.shape[1]) % 7 / 8)).sum(1) + 0 * y


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The gradient of each parameter by name, of a program and of PyTorch."""
    module, x, y = Kinks().eval(), torch.zeros(1, 1), torch.zeros(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    target = jax.ShapeDtypeStruct((1,), "float32")
    program = pocketune.build(module, inputs=(x,), loss=weighed, y=target, optimizer=optimizer, batch=1, check=False)
    path = tmp_path_factory.mktemp("kinks") / "program.tflite"
    program.write(path)
    weighed(module(x), y).sum().backward()
    with pocketune.TrainingSession(path) as session:
        session.train(x.numpy(), y.numpy())
        after = dict(session.parameters())
    before = {name: p.detach().numpy() for name, p in module.named_parameters()}
    theirs = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    return {
        kink: (before[f"at.{i}"] - after[f"at.{i}"].reshape(before[f"at.{i}"].shape), theirs[f"at.{i}"])
        for i, kink in enumerate(KINKS)
    }


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks_are_those_of_pytorch(
    name: str, gradients: dict[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    ours, theirs = gradients[name]
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss()])
def test_losses_are_flat_where_the_answer_is_right(loss: nn.Module, tmp_path: Path) -> None:
    module = nn.Linear(2, 2).eval()
    program = pocketune.build(
        module, inputs=(torch.zeros(1, 2),), loss=loss, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), batch=1
    )
    program.write(tmp_path / "program.tflite")
    with pocketune.TrainingSession(tmp_path / "program.tflite") as session:
        x = np.ones((1, 2), np.float32)
        session.train(x, session.infer(x))
        for name, weight in session.parameters().items():
            np.testing.assert_array_equal(weight, module.state_dict()[name].numpy(), err_msg=name)
