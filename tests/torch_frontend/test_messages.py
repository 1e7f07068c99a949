"""What is passed by mistake is named, with what to pass in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pocketune
from converter.support.errors import PocketuneError, UsageError

X = torch.zeros(4, 5)


class Chosen(nn.Module):
    """Control flow that PyTorch has and a program has not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda h: h * 2, lambda h: h + 1, (self.inner(x),))


class Taking(nn.Module):
    """A module of two arguments, or one whose output is a number."""

    def __init__(self, mean: bool = False) -> None:
        super().__init__()
        self.inner, self.mean = nn.Linear(5, 3), mean

    def forward(self, signal: Any, other: Any = None) -> Any:
        h = self.inner(signal if other is None else signal + other)
        return h.square().mean() if self.mean else h


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (nn.Linear, {}, r"Linear is a class and no model: make one of it, Linear\(\.\.\.\)"),
        (nn.Linear(5, 3).state_dict(), {}, "a dict of weights.*has no layers"),
        (nn.Linear(5, 3), {"inputs": X}, r"a tuple, inputs=\(x,\)"),
        (nn.Linear(5, 3), {"inputs": (4, 5)}, r"inputs are example tensors.*none in \(4, 5\)"),
        (nn.Linear(5, 3), {"optimizer": torch.optim.Adam}, r"the class Adam: .*Adam\(module.parameters\(\), lr=...\)"),
        (nn.Linear(5, 3), {"loss": nn.MSELoss}, r"the class MSELoss, not a loss: make one of it, MSELoss\(\)"),
        (nn.Linear(5, 3), {"batch_norm": "train"}, "layers of Keras, PyTorch and Flax, and this model has none"),
        (Taking(mean=True), {"loss": lambda rows: rows}, "given one number, which the module makes of all rows"),
        (Chosen(), {}, r"control flow \(cond\)[\s\S]*use torch.where"),
    ],
)
def test_what_is_no_model_loss_or_input_is_named(
    model: Any, options: Any, match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"inputs": (X,), "loss": nn.MSELoss(), "optimizer": "sgd", "batch": 4, "check": False} | options
    with pytest.raises(PocketuneError, match=match):
        pocketune.build(model, **given)
    assert "def forward" not in capsys.readouterr().err


def test_a_program_of_fixed_rows_names_its_own_arguments(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Taking(), (X, X)), tmp_path / "fixed.pt2")
    with pytest.raises(
        UsageError, match=r"dynamic_shapes=\{'signal': \{0: torch.export.Dim.DYNAMIC\}, 'other': \{0: .*DYNAMIC\}\}"
    ):
        pocketune.build(tmp_path / "fixed.pt2", loss=nn.MSELoss(), batch=3)
