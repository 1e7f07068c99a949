"""Steps of training by PyTorch and by a program, and what PyTorch itself makes of the last bits of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pocketune

#: How far a loss, and a weight in units of its update, may be from PyTorch's.
TOLERANCE = 1e-4
#: How many times what rounding makes of PyTorch's own it may be.
OF_ROUNDING = 4.0


@dataclass
class Trained:
    """What came of training.

    Attributes:
        losses: of each step.
        weights: behind the last, by name.
    """

    losses: list[float]
    weights: dict[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """What a module is trained for.

    Attributes:
        inputs: tensors of a batch, or by keyword.
        y: the targets.
        loss: of `torch.nn`.
        pick: the output that the loss reads.
        outputs: the name of that output; None: the only one.
    """

    inputs: Sequence[torch.Tensor] | dict[str, torch.Tensor]
    y: torch.Tensor
    loss: torch.nn.Module
    pick: Callable[[Any], torch.Tensor] = lambda output: output
    outputs: tuple[str, ...] | None = None

    def output(self, module: torch.nn.Module) -> torch.Tensor:
        """Return what the module makes of the batch."""
        called = module(**self.inputs) if isinstance(self.inputs, dict) else module(*self.inputs)
        return self.pick(called)

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Task:
        """Return the same with other inputs."""
        x = self.inputs
        return replace(self, inputs={k: change(t) for k, t in x.items()} if isinstance(x, dict) else [*map(change, x)])

    def arrays(self) -> tuple[Any, np.ndarray]:
        """Return the batch and the targets as a session takes them."""

        def array(tensor: torch.Tensor) -> np.ndarray:
            return tensor.numpy() if tensor.is_floating_point() else tensor.numpy().astype(np.int32)

        tensors = list(self.inputs.values()) if isinstance(self.inputs, dict) else list(self.inputs)
        x = array(tensors[0]) if len(tensors) == 1 else [array(t) for t in tensors]
        return x, array(self.y)


def by_torch(
    module: torch.nn.Module,
    task: Task,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    names: Sequence[str],
    steps: int,
) -> Trained:
    """Train the named parameters of a copy of a module, in the modes that its layers are in."""
    module = copy.deepcopy(module)
    own = dict(module.named_parameters())
    for name, p in own.items():
        p.requires_grad_(name in names)
    made, losses = optimizer([p for name, p in own.items() if name in names]), []
    for _ in range(steps):
        made.zero_grad()
        value = task.loss(task.output(module), task.y)
        value.backward()
        made.step()
        losses.append(float(value.detach()))
    return Trained(losses, {k: v.detach().numpy().copy() for k, v in module.state_dict().items()})


def by_program(program: pocketune.Program, folder: Path, task: Task, steps: int) -> tuple[Trained, Any]:
    """Train a program; what it infers before comes second."""
    path, (x, y) = folder / "program.tflite", task.arrays()
    program.write(path)
    with pocketune.TrainingSession(path) as session:
        inferred = session.infer(x)
        losses = [session.train(x, y) for _ in range(steps)]
        return Trained(losses, dict(session.parameters())), inferred


def flipped(module: torch.nn.Module, task: Task, draw: int = 0) -> tuple[torch.nn.Module, Task]:
    """Return a copy of a module, and its task, with the last bit turned of all float32 numbers.

    Args:
        module: what is copied.
        task: that trains it.
        draw: not 0: of a half of them, drawn at random by this seed.
    """
    other, rng = copy.deepcopy(module), torch.Generator().manual_seed(draw)

    def transposed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32 or not tensor.numel():
            return tensor
        bits = (torch.rand(tensor.shape, generator=rng) < (0.5 if draw else 1.0)).int()
        return (tensor.contiguous().view(torch.int32) ^ bits).view(torch.float32)

    with torch.no_grad():
        for tensor in [*other.parameters(), *other.buffers()]:
            tensor.copy_(transposed(tensor))
    return other, task.mapped(transposed)


def doubled(module: torch.nn.Module, task: Task) -> tuple[torch.nn.Module, Task]:
    """Return a copy of a module that computes in float64, and its task."""

    def double(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    made = task.mapped(double)
    return copy.deepcopy(module).double(), replace(made, y=double(made.y), loss=copy.deepcopy(made.loss).double())


def faults(ours: Trained, theirs: Trained, others: Sequence[Trained], before: dict[str, torch.Tensor]) -> list[str]:
    """Return where a training of a program is not PyTorch's: losses, and weights by their updates or by rounding.

    Args:
        ours: that of the program.
        theirs: that of PyTorch.
        others: those of PyTorch with other last bits, and with more of them.
        before: the weights at the beginning.
    """
    found = []
    for step, (mine, its) in enumerate(zip(ours.losses, theirs.losses, strict=True)):
        spread = max(abs(its - other.losses[step]) for other in others)
        allowed = max(TOLERANCE * max(abs(its), 1.0), OF_ROUNDING * spread)
        if not abs(mine - its) <= allowed:
            found.append(f"loss of step {step}: {mine:.7g}, not {its:.7g} (by {allowed:.1e})")
    for name, weight in ours.weights.items():
        its = theirs.weights[name].astype(np.float64).reshape(weight.shape)
        update = np.abs(its - before[name].numpy().reshape(weight.shape)).max()
        spread = max(np.abs(its - other.weights[name].reshape(weight.shape)).max() for other in others)
        stored = len(theirs.losses) * 2.0**-23 * np.abs(its).max()  # either side rounds the weight in each step
        allowed = max(TOLERANCE * update, OF_ROUNDING * spread, stored)
        if name.endswith("running_mean"):  # that of numbers around 0 is the rounding of those
            deviation = np.sqrt(theirs.weights[name.replace("running_mean", "running_var")].max())
            allowed = max(allowed, OF_ROUNDING * 2.0**-23 * deviation)
        far = np.abs(weight - its).max()
        if not far <= allowed:
            found.append(f"{name}: {far:.1e} off, allowed {allowed:.1e} (its update {update:.1e})")
    return found
