"""Judges the gradients of nets of PyTorch that train whole, with a last layer that reads blocks, beside autograd."""

from __future__ import annotations

import copy

import numpy as np
import torch

import pocketune
from converter.support.errors import PocketuneError
from tests.driver.head_reads.drawn import CLASSES, Dice, Drawn
from tests.driver.head_reads.judged_reads import differences, expected

ROWS, HEAD = 4, "head.weight"


def judge_gradients(drawn: Drawn, seed: int) -> tuple[list[str], list[str]]:
    """Return which gradients of a second step are wrong, when weights for blocks are no zeros, and what was refused."""
    dice, rows = Dice(seed + 2000), drawn.rows(ROWS)
    y = dice.rng.integers(0, CLASSES, ROWS).astype(np.int32)
    option = dice.one("blocks", "blocks/2", "blocks/3", "blocks:2/2")
    options = {"update": "full", "optimizer": "sgd", "batch": ROWS, "check": False, **drawn.options}
    try:
        program = pocketune.build(drawn.model, head_reads=option, **options)
    except PocketuneError as error:
        return [], [f"{option}: {error}"]
    with pocketune.TrainingSession(program.data) as session:
        session.train(rows, y, learning_rate=0.5)
        before = session.parameters()
        session.train(rows, y, learning_rate=1.0)
        after = session.parameters()
    wanted = gradients(program, drawn, before, rows, y)
    found = []
    for name, gradient in wanted.items():
        moved = before[name] - after[name] if name in before else np.zeros_like(gradient)
        found += differences(f"{option} {name}", moved, gradient)
    return found, []


def gradients(
    program: pocketune.Program, drawn: Drawn, parameters: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the gradients at some parameters by autograd, in double precision, of a head that reads what notes say."""
    assert drawn.live is not None
    net = copy.deepcopy(drawn.model).double()
    wide = torch.from_numpy(parameters[HEAD]).double().requires_grad_()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name in parameters and name != HEAD:
                parameter.copy_(torch.from_numpy(parameters[name]))
    read = torch.cat(expected(program, drawn, drawn.live(net, x)), 1)
    logits = read @ wide.T + net.head.bias
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(y).long()).backward()
    found = {name: p.grad.numpy() for name, p in net.named_parameters() if p.grad is not None and name != HEAD}
    assert wide.grad is not None
    return {**found, HEAD: wide.grad.numpy()}
