"""First steps of a PyTorch user: what goes wrong says what to write; what a loop does beside has a form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional

import pocketune
from converter.support.errors import PocketuneError, UsageError

RNG = np.random.default_rng(0)
X, LABELS = RNG.standard_normal((8, 5), np.float32), np.arange(8) % 4


class Heads(nn.Module):
    """Two outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(5, 1)

    def forward(self, x: Any) -> Any:
        return {"logits": self.a(x), "value": self.b(x)}


class Reserved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Any, weight: Any) -> Any:
        return self.inner(x * weight)


def build(module: Any, loss: Any, inputs: int = 1, **options: Any) -> pocketune.Program:
    return pocketune.build(module, inputs=(torch.zeros(1, 5),) * inputs, loss=loss, batch=8, check=False, **options)


def of_rows(outputs: Any, y: Any) -> Any:
    return (outputs - y).square().mean(1)


@pytest.mark.parametrize(
    ("call", "y"),
    [
        (lambda session, y: session.train(X, y, 0.1), LABELS),
        (lambda session, y: session.fit(X, y, epochs=1), LABELS),
        (lambda session, y: session.evaluate(X, y), LABELS),
        (lambda session, y: session.train(X, y, 0.1), RNG.standard_normal((8, 2))),
    ],
)
def test_targets_of_another_shape_name_the_y_to_build_with(call: Callable[[Any, Any], Any], y: Any) -> None:
    kind = "float32" if y.ndim > 1 else "int32"
    shape = r"\(1, 2\)" if y.ndim > 1 else r"\(1,\)"
    with (
        pocketune.TrainingSession(build(nn.Linear(5, 4), of_rows).data) as session,
        pytest.raises(UsageError, match=rf"expected float32.*y=jax.ShapeDtypeStruct\({shape}, '{kind}'\)"),
    ):
        call(session, y)


@pytest.mark.quick
def test_the_y_that_is_named_trains() -> None:
    module = nn.Linear(5, 4)
    described = jax.ShapeDtypeStruct((1,), "int32")
    program = build(module, lambda o, y: functional.cross_entropy(o, y, reduction="none"), y=described)
    with pocketune.TrainingSession(program.data) as session:
        found = session.train(X, LABELS, 0.1)
    expected = functional.cross_entropy(module(torch.tensor(X)), torch.tensor(LABELS)).item()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "loss", "options", "match"),
    [
        (
            Heads(),
            lambda o, y: functional.cross_entropy(o["logits"], y["label"], reduction="none"),
            {},
            r"Without y= the targets are like the outputs: labels are y=jax.ShapeDtypeStruct\(\(1,\), 'int32'\)",
        ),
        (
            Heads(),
            lambda o, y: of_rows(o["logits"], y["logits"]),
            {},
            r"""update=\{"\*": 1, 'b.bias': 0, 'b.weight': 0\}""",
        ),
        (
            nn.Linear(5, 4),
            nn.CrossEntropyLoss(weight=torch.ones(4)),
            {"micro_batch": 2},
            "the loss CrossEntropyLoss counts labels by their class .*weight=",
        ),
        (
            nn.Linear(5, 4),
            nn.CrossEntropyLoss(ignore_index=3),
            {"micro_batch": 2},
            "leaves some out .*ignore_index=",
        ),
        (Reserved(), "mse", {"inputs": 2}, r"named 'weight'.*rename the argument \(of forward"),
        (nn.Linear(5, 4), "mse", {"dropout": "train"}, "nn.Dropout and the like in PyTorch"),
    ],
)
def test_what_cannot_be_built_says_what_to_write(module: Any, loss: Any, options: Any, match: str) -> None:
    with pytest.raises(PocketuneError, match=match):
        build(module, loss, **options)


def test_the_rule_that_is_advised_builds() -> None:
    build(Heads(), lambda o, y: of_rows(o["logits"], y["logits"]), update={"*": 1, "b.bias": 0, "b.weight": 0})


@pytest.mark.parametrize("micro_batch", [8, 2])
@pytest.mark.parametrize("by_norm", [True, False])
def test_clipping_by_optax_is_that_of_a_training_loop(by_norm: bool, micro_batch: int) -> None:
    torch.manual_seed(0)
    module, y = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)), RNG.standard_normal((8, 4), np.float32)
    clip = optax.clip_by_global_norm(0.1) if by_norm else optax.clip(0.02)
    optimizer = optax.chain(clip, optax.adamw(1e-2, weight_decay=0.01))
    program = build(module, nn.MSELoss(), optimizer=optimizer, micro_batch=micro_batch)
    stepping = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.01)
    with pocketune.TrainingSession(program.data) as session:
        for _ in range(4):
            found = session.train(X, y)
            stepping.zero_grad()
            loss = nn.MSELoss()(module(torch.tensor(X)), torch.tensor(y))
            loss.backward()
            if by_norm:
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            else:
                nn.utils.clip_grad_value_(module.parameters(), 0.02)
            stepping.step()
            np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
        for name, array in session.parameters().items():
            np.testing.assert_allclose(array, module.state_dict()[name], rtol=1e-3, atol=1e-5)
