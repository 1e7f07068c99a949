"""The same steps by PyTorch and by the program, with what PyTorch itself makes of the last bit of a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pocketune


@dataclass
class Trained:
    """What came of training: the loss of each step, and the weights behind the last by name."""

    losses: list[float]
    weights: dict[str, np.ndarray]


def by_torch(
    module: torch.nn.Module,
    x: Sequence[torch.Tensor],
    y: torch.Tensor,
    loss: Callable[..., torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    steps: int,
    names: Sequence[str],
    pick: Callable[[Any], torch.Tensor] = lambda output: output,
) -> Trained:
    """Train the named parameters of a module, in the mode that it is in."""
    own = dict(module.named_parameters())
    before = {name: p.requires_grad for name, p in own.items()}
    for name, p in own.items():
        p.requires_grad_(name in names)
    made, losses = optimizer([own[name] for name in names]), []
    for _ in range(steps):
        made.zero_grad()
        value = loss(pick(module(*x)), y)
        value.backward()
        made.step()
        losses.append(float(value.detach()))
    for name, p in own.items():
        p.requires_grad_(before[name])
    return Trained(losses, {k: v.detach().numpy().copy() for k, v in module.state_dict().items()})


def by_program(
    program: pocketune.Program, folder: Path, x: Any, y: Any, rate: float, steps: int
) -> tuple[Trained, Any]:
    """Train a program, and what it infers before."""
    path = folder / "program.tflite"
    program.write(path)
    with pocketune.TrainingSession(path) as session:
        inferred = session.infer(x)
        losses = [session.train(x, y, rate) for _ in range(steps)]
        return Trained(losses, dict(session.parameters())), inferred


def flipped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state with the last bit of each float32 number turned: what rounding alone makes of a training."""

    def turned(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        return (tensor.contiguous().view(torch.int32) ^ 1).view(torch.float32)

    return {name: turned(tensor.clone()) for name, tensor in state.items()}
