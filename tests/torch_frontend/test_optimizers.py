"""Optimizers of `torch.optim` and their schedulers: PyTorch itself takes the same steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import pocketune
from converter.frontends.torch import read_optimizer
from converter.support.errors import UsageError

STEPS = 12
RNG = np.random.default_rng(0)
SHAPES = {"a": (3, 2), "b": (4,)}
GRADIENTS = [{n: RNG.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()} for _ in range(STEPS)]
Made = Callable[[list[torch.nn.Parameter]], Any]

OPTIMIZERS: dict[str, Made] = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "sgd, decay": lambda p: optim.SGD(p, 0.1, weight_decay=0.1),
    "sgd, up": lambda p: optim.SGD(p, 0.1, momentum=0.9, maximize=True, weight_decay=0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampened": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.3),
    "adam": lambda p: optim.Adam(p, 0.01, betas=(0.8, 0.9), eps=1e-4),
    "adam, coupled": lambda p: optim.Adam(p, 0.01, weight_decay=0.1),
    "adam, decoupled": lambda p: optim.Adam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "amsgrad": lambda p: optim.Adam(p, 0.01, betas=(0.9, 0.6), amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, 0.01, weight_decay=0.1),
    "adamw, up, amsgrad": lambda p: optim.AdamW(p, 0.01, maximize=True, amsgrad=True),
    "nadam": lambda p: optim.NAdam(p, 0.01, weight_decay=0.1),
    "nadam, decoupled": lambda p: optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: optim.RAdam(p, 0.01, weight_decay=0.1),
    "radam, decoupled": lambda p: optim.RAdam(p, 0.01, betas=(0.9, 0.9), weight_decay=0.1, decoupled_weight_decay=True),
    "adamax": lambda p: optim.Adamax(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, 0.01, alpha=0.9),
    "rmsprop, centered": lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1, initial_accumulator_value=0.2, weight_decay=0.1),
    "adadelta": lambda p: optim.Adadelta(p, 1.0, weight_decay=0.1),
    "groups": lambda p: optim.AdamW([{"params": p[:1], "lr": 0.1, "weight_decay": 0.5}, {"params": p[1:]}], 0.01),
    "groups of other kinds": lambda p: optim.SGD(
        [{"params": p[:1], "momentum": 0.9}, {"params": p[1:], "lr": 1.0}], 0.1
    ),
}


def weights() -> dict[str, torch.nn.Parameter]:
    """Two weights."""
    rng = np.random.default_rng(1)
    return {n: nn.Parameter(torch.tensor(rng.standard_normal(g.shape).astype("f4"))) for n, g in GRADIENTS[0].items()}


def by_torch(made: Any, own: dict[str, torch.nn.Parameter]) -> dict[str, np.ndarray]:
    """The weights behind all steps."""
    optimizer = made if isinstance(made, optim.Optimizer) else made.optimizer
    for gradients in GRADIENTS:
        for name, p in own.items():
            p.grad = torch.tensor(gradients[name])
        optimizer.step()
        if optimizer is not made:
            made.step()
    return {name: p.detach().numpy() for name, p in own.items()}


def by_optax(made: Any, own: dict[str, torch.nn.Parameter]) -> dict[str, np.ndarray]:
    """The same by what stands for it here."""
    read = read_optimizer(made, {id(p): name for name, p in own.items()})
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in own.items()}
    state = read.optimizer.init(params)
    rate = 1.0 if read.learning_rate is None else read.learning_rate
    for gradients in GRADIENTS:
        updates, state = read.optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, {name: rate * update for name, update in updates.items()})
    return {name: np.asarray(value) for name, value in params.items()}


def some_of(cases: dict[str, Any], *quick: str) -> list[Any]:
    """All cases: some run in every test run, the others in the slow one, as they are many."""
    assert set(quick) <= set(cases)
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in cases]


def compare(make: Made) -> None:
    own = weights()
    made = make(list(own.values()))
    ours = by_optax(made, own)
    theirs = by_torch(made, own)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.abs(value - weights()[name].detach().numpy()).max() > 1e-3


@pytest.mark.parametrize("case", some_of(OPTIMIZERS, "sgd, up", "dampened", "adamw, up, amsgrad", "nadam", "groups"))
def test_steps_are_those_of_pytorch(case: str) -> None:
    compare(OPTIMIZERS[case])


def groups(p: list[torch.nn.Parameter]) -> optim.Optimizer:
    return optim.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], 0.1, momentum=0.9)


SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "stairs": lambda o: lr_scheduler.StepLR(o, 4, 0.5),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [3, 7], 0.2),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=3),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 8, 2.0),
    "factors": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "factors of each group": lambda o: lr_scheduler.LambdaLR(
        o, [lambda n: 1 / (1 + n), lambda n: 1.0 if n < 4 else 0.1]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.6, 0.2], 14, cycle_momentum=False),
    "cycles": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "warmed up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("case", some_of(SCHEDULES, "stairs", "exponential", "factors of each group", "warmed up"))
def test_schedulers_are_functions_of_the_step(case: str) -> None:
    compare(lambda p: SCHEDULES[case](groups(p)))


def test_a_program_steps_as_the_optimizer(tmp_path: Path) -> None:
    """Groups and a schedule in the program itself; what the optimizer does not have stays as it is."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 6), nn.Tanh(), nn.Linear(6, 4))
    x, y = torch.randn(5, 2, 6, 6), torch.randint(0, 4, (5,))
    made = optim.AdamW([{"params": module[0].parameters(), "lr": 3e-3}, {"params": [module[4].weight]}], 1e-2)
    schedule = lr_scheduler.StepLR(made, 3, 0.5)
    program = pocketune.build(module, inputs=(x[:1],), batch=5, loss=nn.CrossEntropyLoss(), optimizer=schedule)
    assert program.manifest.learning_rate is None
    fixed = [note.subject for note in program.notes if note.status == "fixed"]
    assert fixed == ["2.bias, 2.weight, 4.bias"]
    with pocketune.TrainingSession(program.data) as session:
        ours = [session.train(x.numpy(), y.numpy().astype("i4")) for _ in range(8)]
        parameters = session.parameters()
    assert set(parameters) == {"0.weight", "0.bias", "4.weight"}
    theirs = []
    for _ in range(8):
        made.zero_grad()
        value = nn.CrossEntropyLoss()(module(x), y)
        value.backward()
        made.step()
        schedule.step()
        theirs.append(float(value.detach()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for name, value in parameters.items():
        np.testing.assert_allclose(value, module.state_dict()[name].numpy(), atol=2e-6, err_msg=name)


def refused(make: Made, match: str) -> None:
    own = weights()
    with pytest.raises(UsageError, match=match):
        read_optimizer(make(list(own.values())), {id(p): name for name, p in own.items()})


def test_what_cannot_be_taken_over_is_refused() -> None:
    refused(lambda p: optim.LBFGS(p), "LBFGS cannot be taken over: it evaluates the loss several times")
    refused(lambda p: optim.SGD([*p, nn.Parameter(torch.zeros(7))], 0.1), r"of the shape \[7\] that is none of the")
    refused(lambda p: lr_scheduler.ReduceLROnPlateau(groups(p)), "it looks at the loss of an evaluation")
    refused(lambda p: lr_scheduler.CyclicLR(groups(p), 0.01, 0.1), "changes the momentum as well")
    refused(lambda p: optim.SGD([{"params": p[:1], "lr": 0.0}, {"params": p[1:]}], 0.1), "rate 0 in its first group")
