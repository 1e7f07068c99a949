"""Skip-LoRA around modules of PyTorch, against torch.autograd of the module with the ways beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import converter
from converter.frontends.torch import Model
from converter.runtime import TrainingSession

STEPS, BATCH, RATE = 20, 4, 0.1


class Encoder(nn.Module):
    """The head reads the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class Convolutions(nn.Module):
    """Channels first, with blocks of two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1)) for _ in range(2)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


#: A module, the shape of a row, and the weights whose inputs are read with how those become one vector of a row.
CASES = {
    "encoder": (Encoder, (5, 4), "layers.{}.self_attn.in_proj_weight", lambda x: x[:, 0]),
    "convolutions": (Convolutions, (3, 6, 6), "blocks.{}.0.weight", lambda x: x.mean((2, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_training_is_that_of_autograd(name: str) -> None:
    made, row, weight, pooled = CASES[name]
    torch.manual_seed(0)
    module = made().eval().requires_grad_(False)
    program = converter.build(
        Model(module, (torch.zeros(1, *row),)),
        loss="sparse_categorical_crossentropy",
        optimizer="sgd",
        update="skip-lora-2",
        batch=BATCH,
        check=False,
        signatures=("train", "evaluate", "infer", "features"),
    )
    reads: dict[str, Any] = {}
    hooked = [(weight.format(i), block) for i, block in enumerate(getattr(module, "layers", None) or module.blocks)]
    for key, inner in [*hooked, ("head.weight", module.head)]:
        inner.register_forward_pre_hook(lambda _, given, key=key: reads.update({key: given[0]}))
    rng = np.random.default_rng(0)
    with TrainingSession(program.data) as session:
        theirs = {n: torch.tensor(array, requires_grad=True) for n, array in session.parameters().items()}
        assert {n.rpartition("/")[0] for n in theirs} == {*(key for key, _ in hooked), "head.weight"}
        optimizer = torch.optim.SGD(theirs.values(), lr=RATE)
        for _ in range(STEPS):
            x, y = rng.normal(size=(BATCH, *row)).astype("f"), rng.integers(0, 3, BATCH).astype(np.int32)
            logits = module(torch.tensor(x))
            for key, read in reads.items():
                vector = read if key == "head.weight" else pooled(read)
                logits = logits + vector @ theirs[f"{key}/skip_a"] @ theirs[f"{key}/skip_b"]
            loss = nn.functional.cross_entropy(logits, torch.tensor(y).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found = session.fit(x, y, 1, RATE, shuffle=False, progress=False)["loss"][0]
            np.testing.assert_allclose(found, loss.item(), rtol=1e-5, atol=1e-6)
        for n, array in session.parameters().items():
            np.testing.assert_allclose(array, theirs[n].detach().numpy(), rtol=0, atol=1e-5, err_msg=n)
