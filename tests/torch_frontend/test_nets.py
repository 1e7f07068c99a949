"""Modules of the kinds that people write train as PyTorch trains them; a sweep over whole libraries is a script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pocketune
from converter.support.errors import PocketuneError
from scripts.torch.nets.others import NETS as OTHERS
from scripts.torch.nets.own import NETS
from scripts.torch.sweep import tried

#: One of each kind; the others run in the slow test run.
QUICK = ("decoder", "flattened", "lstm", "mobile")


@pytest.mark.quick
@pytest.mark.parametrize("name", QUICK)
def test_modules_train_as_in_pytorch(name: str) -> None:
    assert dict(tried(NETS[name], ["full/sgd"])) == {"full/sgd": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NETS, *OTHERS])
def test_all_modules_train_as_in_pytorch(name: str) -> None:
    assert not {way: wrong for way, wrong in tried((NETS | OTHERS)[name]) if wrong}


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


class Chosen(nn.Module):
    """Rows by the values in them."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.inner, self.function = nn.Linear(3, 3), function

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.function(x)


@pytest.mark.parametrize(
    ("module", "shape", "match"),
    [
        (Packed(), (2, 5, 3), r"packed sequence .*padded batch.* \(\S*test_nets.py:\d+ in forward\)"),
        (nn.Sequential(Branching()), (2, 3), r"cannot be exported: .*layer 0 at \S*test_nets.py:\d+ in forward"),
        (
            Chosen(lambda x: x[x[:, 0] > 0].sum()),
            (2, 3),
            r"a mask, whose result has no fixed size[\s\S]*test_nets.py:\d+",
        ),
        (Chosen(lambda x: x[x > 0].view(-1, 1).sum()), (2, 3), r"no fixed size[\s\S]*test_nets.py:\d+"),
        (Chosen(lambda x: torch.masked_select(x, x > 0).view(-1, 1).sum()), (2, 3), r"size depends on values"),
        (Chosen(lambda x: torch.nonzero(x).sum()), (2, 3), r"size depends on values[\s\S]*test_nets.py:\d+"),
        (Chosen(lambda x: torch.nonzero(x).shape[0]), (2, 3), r"size depends on values[\s\S]*test_nets.py:\d+"),
        (Chosen(lambda x: x.max().item()), (2, 3), r"number taken out of a tensor[\s\S]*test_nets.py:\d+"),
        (nn.Sequential(Noisy()), (2, 3), r"random numbers[\s\S]*layer 0 at \S*test_nets.py:\d+ in forward"),
    ],
)
def test_refusals_name_the_module_and_the_line(module: nn.Module, shape: tuple[int, ...], match: str) -> None:
    with pytest.raises(PocketuneError, match=match):
        pocketune.build(module, inputs=(torch.zeros(shape),), batch=2, loss=nn.MSELoss())
