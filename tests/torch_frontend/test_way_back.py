"""Trained weights back in their module: adapters are merged, and the module computes what the program infers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pocketune
from converter.program.file import read_program
from converter.runtime.export import export_weights
from converter.support.errors import UsageError


class Net(nn.Module):
    """Layers of several layouts that take adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(11, 64), nn.Conv1d(64, 64, 3, padding=1)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.inner, self.head = nn.Linear(64, 128), nn.Linear(128, 4)

    def forward(self, x: Any) -> Any:
        h = self.words(x)
        h = h + self.conv(h.transpose(1, 2)).transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(self.inner(h).relu().mean(1))


def trained(**options: Any) -> tuple[nn.Module, Any, pocketune.Program, pocketune.TrainingSession]:
    """A module, its rows, and a session that has trained."""
    torch.manual_seed(0)
    module, x = Net().eval(), torch.randint(0, 11, (6, 5))
    optimizer = torch.optim.SGD(module.parameters(), 0.3)
    program = pocketune.build(
        module, inputs=(x,), loss=nn.CrossEntropyLoss(), optimizer=optimizer, batch=6, check=False, **options
    )
    session = pocketune.TrainingSession(program.data)
    for _ in range(3):
        session.train(x.int().numpy(), np.arange(6, dtype=np.int32) % 4)
    return module, x, program, session


@pytest.mark.parametrize(
    "update", ["lora-4", *(pytest.param(u, marks=pytest.mark.slow) for u in ("dora-4", "channels-4", "sparse", "full"))]
)
def test_the_module_computes_what_the_program_infers(update: str, tmp_path: Path) -> None:
    module, x, program, session = trained(update=update)
    with session:
        expected, state = session.infer(x.int().numpy()), session.state_dict()
        adapters, tensors = session.adapters(), session.state()
    before, after = copy.deepcopy(module), module
    assert not after.load_state_dict(state, strict=False).unexpected_keys
    with torch.no_grad():
        np.testing.assert_allclose(after(x).numpy(), expected, atol=1e-5)
        assert np.abs(before(x).numpy() - expected).max() > 1e-2
    export_weights(read_program(program.data), tmp_path / "mine.pt", tensors)
    stored = torch.load(tmp_path / "mine.pt", weights_only=True)
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in state.items())
    assert bool(adapters) == (update in ("lora-4", "dora-4"))
    for name, adapter in adapters.items():
        own = before.get_parameter(name).detach().numpy()
        assert adapter.scale == 2
        assert adapter.a.shape[-1] == 4
        if adapter.magnitude is None:
            np.testing.assert_allclose(own + adapter.change, state[name], atol=1e-6)


@pytest.mark.parametrize("update", ["dora-4", pytest.param("lora-4", marks=pytest.mark.slow)])
def test_adapters_of_rounded_weights_go_into_those_of_the_module(update: str, tmp_path: Path) -> None:
    module, x, program, session = trained(update=update, frozen="int4")
    with session:
        expected, before = session.infer(x.int().numpy()), module(x).detach().numpy()
        with pytest.raises(UsageError, match=r"fewer bits than the model.*state_dict\(base=module.state_dict\(\)\)"):
            session.state_dict()
        with pytest.raises(UsageError, match=r"base: it has no \S+ of the shape"):
            session.state_dict(base={})
        assert not module.load_state_dict(session.state_dict(module.state_dict()), strict=False).unexpected_keys
    rounding = np.abs(expected - module(x).detach().numpy()).max()
    assert rounding < 0.1 * np.abs(expected - before).max()
    with pytest.raises(UsageError, match="fewer bits"):
        export_weights(read_program(program.data), tmp_path / "mine.pt")
