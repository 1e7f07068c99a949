"""Modules of the kinds that people write train as PyTorch trains them; a sweep over whole libraries is a script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pocketune
from converter.support.errors import PocketuneError
from scripts.torch.nets.own import NETS
from scripts.torch.sweep import tried

#: One of each kind; the others run in the slow test run.
QUICK = ("decoder", "flattened", "lstm", "mobile")


@pytest.mark.parametrize("name", QUICK)
def test_modules_train_as_in_pytorch(name: str) -> None:
    assert dict(tried(NETS[name], ["full/sgd"])) == {"full/sgd": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_all_modules_train_as_in_pytorch(name: str) -> None:
    assert not {way: wrong for way, wrong in tried(NETS[name]) if wrong}


class Packed(nn.Module):
    """A recurrent layer over a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0].mean(1)


class Branching(nn.Module):
    """Control flow by the values of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x) if x.sum() > 0 else x


class Noisy(nn.Module):
    """Random numbers in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x + torch.randn_like(x))


@pytest.mark.parametrize(
    ("module", "shape", "match"),
    [
        (Packed(), (2, 5, 3), r"packed sequence .*padded batch.* \(\S*test_nets.py:\d+ in forward\)"),
        (nn.Sequential(Branching()), (2, 3), r"cannot be exported: .*layer 0 at \S*test_nets.py:\d+ in forward"),
        (nn.Sequential(Noisy()), (2, 3), r"random numbers[\s\S]*layer 0 at \S*test_nets.py:\d+ in forward"),
    ],
)
def test_refusals_name_the_module_and_the_line(module: nn.Module, shape: tuple[int, ...], match: str) -> None:
    with pytest.raises(PocketuneError, match=match):
        pocketune.build(module, inputs=(torch.zeros(shape),), batch=2, loss=nn.MSELoss())
