"""Random set-ups of PyTorch: a module, its outputs, a loss, an optimizer, a mode and a scheme, drawn from a seed.

`python -m tests.torch_frontend.random_training FIRST COUNT` judges so many beside eager PyTorch, a line each.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import pocketune
from converter.support.errors import PocketuneError
from tests.torch_frontend.losses.random_losses import Goal, draw_goal

STEPS, ROWS = 5, 4
#: How far a loss, and a weight in units of its update, may be off; and in units of what float32 makes of PyTorch's own.
TOLERANCE, OF_ROUNDING = 1e-4, 4.0
#: Of PyTorch in float32 from weights that differ in their last bits.
MORE_RUNS = 8
#: Losses of the steps, and the state by name.
Trained = tuple[list[float], dict[str, np.ndarray]]
_ACTIVATIONS = (
    nn.Tanh,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Softplus,
    nn.Sigmoid,
    nn.LeakyReLU,
    nn.ReLU,
    nn.Hardswish,
    nn.Mish,
)
_SCHEMES = ("full", "full", "full", "head", "bias-only", "last-1", "lora-1")


class Body(nn.Module):
    """Layers of one kind, which give [rows, 6]."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.kind = str(rng.choice(["dense", "image", "series", "recurrent", "encoder", "words"]))
        act = _ACTIVATIONS[rng.integers(len(_ACTIVATIONS))]
        norm = rng.random() < 0.6
        bias = bool(rng.random() < 0.8)
        self.words = nn.Embedding(9, 6) if self.kind in ("words", "encoder") else None
        if self.kind == "dense":
            layers = [nn.Linear(5, 7, bias=bias), *([nn.BatchNorm1d(7)] if norm else [nn.LayerNorm(7)]), act()]
            self.layers = nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(7, 6))
        elif self.kind == "image":
            pool = nn.MaxPool2d(2) if rng.random() < 0.5 else nn.AvgPool2d(2)
            norms = nn.BatchNorm2d(6, momentum=0.2) if norm else nn.GroupNorm(2, 6)
            stem = nn.Conv2d(2, 6, 3, padding=1, bias=bias, groups=int(rng.choice([1, 2])))
            self.layers = nn.Sequential(
                stem, norms, act(), pool, nn.Conv2d(6, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
            )
        elif self.kind == "series":
            layers = [nn.Conv1d(3, 6, 3, stride=int(rng.choice([1, 2]))), *([nn.BatchNorm1d(6)] if norm else []), act()]
            self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        elif self.kind == "recurrent":
            cell = (nn.GRU, nn.LSTM)[rng.integers(2)]
            self.layers = cell(3, 6, batch_first=True, bias=bias)
        elif self.kind == "encoder":
            self.layers = nn.TransformerEncoderLayer(
                6, 2, 8, dropout=0.0, activation="gelu", batch_first=True, norm_first=bool(norm)
            )
        else:
            self.layers = nn.Sequential(nn.Linear(6, 6, bias=bias), act())

    def forward(self, x: Any) -> Any:
        if self.words is not None:
            x = self.words(x)
        if self.kind == "recurrent":
            return self.layers(x)[0][:, -1]
        h = self.layers(x)
        return h.mean(1) if h.dim() == 3 else h

    def rows(self, rng: np.random.Generator, count: int) -> torch.Tensor:
        """Return inputs."""
        if self.words is not None:
            return torch.from_numpy(rng.integers(0, 9, (count, 4)))
        shape = {"dense": (5,), "image": (2, 6, 6), "series": (3, 9), "recurrent": (4, 3)}[self.kind]
        return torch.from_numpy(rng.standard_normal((count, *shape)).astype(np.float32))


class Net(nn.Module):
    """A body and a head for each output, joined as the goal says."""

    def __init__(self, body: Body, goal: Goal) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleDict({name: nn.Linear(6, size) for name, size in goal.heads.items()})
        self.join = goal.join

    def forward(self, x: Any) -> Any:
        h = self.body(x)
        return self.join({name: head(h) for name, head in self.heads.items()})


@dataclass
class SetUp:
    """A set-up, in the form that eager PyTorch and `build` take.

    Attributes:
        module: in the mode that it is trained in.
        goal: what it is trained for.
        x: inputs of all steps.
        optimizer: makes an optimizer, or a scheduler of one, of a module.
        words: what was drawn.
        scheme: what trains.
        by_batch: whether batch normalization is by the batch.
    """

    module: Net
    goal: Goal
    x: torch.Tensor
    optimizer: Callable[[nn.Module], Any]
    words: str
    scheme: str
    by_batch: bool


def draw(seed: int) -> SetUp:
    """Return the set-up of a seed."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    goal, body = draw_goal(rng, STEPS * ROWS), Body(rng)
    module = Net(body, goal).eval()
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    scheme = str(rng.choice(_SCHEMES))
    by_batch = scheme == "full" and bool(norms) and rng.random() < 0.6
    words, optimizer = _draw_optimizer(rng)
    said = f"{body.kind} {goal.words} {words} {scheme}{' by batch' if by_batch else ''}"
    return SetUp(module, goal, body.rows(rng, STEPS * ROWS), optimizer, said, scheme, by_batch)


def _draw_optimizer(rng: np.random.Generator) -> tuple[str, Callable[[nn.Module], Any]]:
    kinds: dict[str, Callable[[Any], Any]] = {
        "sgd": lambda p: torch.optim.SGD(p, 0.1),
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        "dampened": lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, dampening=0.3),
        "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.05, amsgrad=True, eps=1e-4),
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.95), eps=1e-4),
        "rmsprop": lambda p: torch.optim.RMSprop(p, 0.005, momentum=0.5, centered=True, eps=1e-3),
        "adagrad": lambda p: torch.optim.Adagrad(p, 0.02, eps=1e-3),
        "adadelta": lambda p: torch.optim.Adadelta(p, 0.5, eps=1e-3),
        "adamax": lambda p: torch.optim.Adamax(p, 0.01, eps=1e-4),
        "nadam": lambda p: torch.optim.NAdam(p, 0.01, eps=1e-4),
        "radam": lambda p: torch.optim.RAdam(p, 0.01, eps=1e-4),
    }
    schedules: dict[str, Callable[[Any], Any]] = {
        "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
        "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7),
        "warm": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.2, 1.0, 3),
    }
    kind = str(rng.choice(list(kinds)))
    schedule = str(rng.choice(list(schedules))) if rng.random() < 0.4 else ""
    separate = bool(rng.random() < 0.4)

    def make(module: nn.Module) -> Any:
        named = list(module.named_parameters())
        groups: Any = [p for _, p in named]
        if separate:
            heads = [p for name, p in named if name.startswith("heads")]
            groups = [{"params": heads, "lr": 0.03}, {"params": [p for n, p in named if not n.startswith("heads")]}]
        made = kinds[kind](groups)
        return schedules[schedule](made) if schedule else made

    return " ".join([kind, *([schedule] if schedule else []), *(["groups"] if separate else [])]), make


def eager(setup: SetUp, trains: set[str] | None, double: bool, moved: int | None = None) -> Trained:
    """Return the losses and the state of five steps of PyTorch.

    Args:
        setup: what is trained.
        trains: names of parameters; None: all.
        double: whether it computes in float64.
        moved: the seed by which each weight becomes one of its two neighbours; None: they stay.
    """
    module, goal, x = copy.deepcopy(setup.module), setup.goal, setup.x
    if moved is not None:
        _move_last_bits(module, torch.Generator().manual_seed(moved))
    y = goal.y
    if double:
        module, y = module.double(), goal.mapped(lambda t: t.double() if t.is_floating_point() else t)
        x = x.double() if x.is_floating_point() else x
    for layer in module.modules():
        layer.training = setup.by_batch and isinstance(layer, nn.modules.batchnorm._BatchNorm)
    made = setup.optimizer(module)
    for name, p in module.named_parameters():
        p.requires_grad_(trains is None or name in trains)
    scheduler, optimizer = (made, made.optimizer) if hasattr(made, "optimizer") else (None, made)
    losses = []
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        optimizer.zero_grad()
        value = goal.value(module(x[rows]), goal.rows(y, rows))
        value.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(value.detach()))
    return losses, {k: v.detach().double().numpy().copy() for k, v in module.state_dict().items()}


def _move_last_bits(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for p in module.parameters():
            up = torch.rand(p.shape, generator=generator) < 0.5
            p.copy_(torch.nextafter(p, torch.where(up, torch.inf, -torch.inf).to(p.dtype)))


def ours(setup: SetUp) -> tuple[list[float], dict[str, np.ndarray], set[str], float]:
    """Return the losses, the state, what trains, and how far the module with that state is from the program."""
    module, goal = copy.deepcopy(setup.module), setup.goal
    program = pocketune.build(
        module,
        inputs=(setup.x[:ROWS],),
        loss=goal.loss,
        y=goal.described,
        optimizer=setup.optimizer(module),
        batch=ROWS,
        update=setup.scheme,
        batch_norm="train" if setup.by_batch else "fixed",
        check=False,
    )
    x = setup.x.numpy() if setup.x.is_floating_point() else setup.x.int().numpy()
    with pocketune.TrainingSession(program.data) as session:
        losses = []
        for step in range(STEPS):
            rows = slice(step * ROWS, (step + 1) * ROWS)
            losses.append(session.train(x[rows], goal.arrays(rows)))
        state, inferred = session.state_dict(), session.infer(x[:ROWS])
        names = set(session.parameters())
    assert not module.load_state_dict(state, strict=False).unexpected_keys
    with torch.no_grad():
        made = module.eval()(setup.x[:ROWS])
    far = max(
        float(np.abs(np.asarray(a) - b.numpy()).max()) for a, b in zip(_leaves(inferred), _leaves(made), strict=True)
    )
    return losses, {k: v.double().numpy() for k, v in state.items()}, names, far


def _leaves(tree: Any) -> list[Any]:
    return list(tree.values()) if isinstance(tree, dict) else list(tree) if isinstance(tree, tuple) else [tree]


def judge(seed: int) -> tuple[str, str]:
    """Return RIGHT, REFUSED or WRONG, and why, of the set-up of a seed."""
    setup = draw(seed)
    try:
        losses, state, names, far = ours(setup)
    except PocketuneError as error:
        return "REFUSED", f"{setup.words}: {error}"
    wrong = [f"infer {far:.1e} from the module"] if not far <= 1e-4 else []
    if setup.scheme == "lora-1":  # whose factors PyTorch has not: its way back is what is judged
        return ("WRONG" if wrong else "RIGHT"), f"{setup.words}: {wrong}"
    trains = None if setup.scheme == "full" else names
    exact, near = eager(setup, trains, True), [eager(setup, trains, False)]
    said = differences(setup, (losses, state), exact, near)
    if said:  # one run is a rough measure of what rounding does
        near += [eager(setup, trains, False, seed) for seed in range(MORE_RUNS)]
        said = differences(setup, (losses, state), exact, near)
    wrong += said
    return ("WRONG" if wrong else "RIGHT"), f"{setup.words}: {'; '.join(wrong)[:400]}"


def differences(setup: SetUp, found: Trained, exact: Trained, near: Sequence[Trained]) -> list[str]:
    """Return what is further from PyTorch's training in float64 than rounding explains.

    Args:
        setup: what was trained.
        found: the training that is judged.
        exact: that of PyTorch in float64.
        near: those of PyTorch in float32, whose largest difference is what rounding does.
    """
    wrong, (losses, state) = list[str](), found
    for step, (a, c) in enumerate(zip(losses, exact[0], strict=True)):
        noise = max(abs(run[0][step] - c) for run in near)
        if not abs(a - c) <= max(TOLERANCE * max(abs(c), 1e-3), OF_ROUNDING * noise, 1e-6):
            wrong.append(f"loss {step}: {a:.7g} not {c:.7g}")
    before = {k: v.double().numpy() for k, v in setup.module.state_dict().items()}
    for name, theirs in exact[1].items():
        update = np.abs(theirs - before[name]).max(initial=0)
        if name not in state:
            wrong += [f"{name} is missing"] if update else []
            continue
        off, *noises = (np.abs(v - theirs).max(initial=0) for v in (state[name], *(run[1][name] for run in near)))
        if not off <= max(TOLERANCE * update, OF_ROUNDING * max(noises), 2.0**-22 * np.abs(theirs).max(initial=0)):
            wrong.append(f"{name} {off:.1e} off of {update:.1e} (PyTorch {max(noises):.1e})")
    return wrong + [f"{name} is unknown" for name in state if name not in exact[1]]


def main(first: int, count: int) -> None:
    """Judge set-ups, a line each."""
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        try:
            verdict, why = judge(seed)
        except Exception as error:  # whatever it is, it is no answer to a user
            verdict, why = "CRASH", f"{draw(seed).words}: {type(error).__name__}: {str(error)[:300]}"
        print(f"{verdict:8} {seed} {why[:600]}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
