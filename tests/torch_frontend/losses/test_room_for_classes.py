"""Losses of PyTorch where classes may come: steps by PyTorch over the known classes alone, or refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from tests.runtime.session.class_nets import INPUTS, LATER, OWN, built, rows_of_classes, small_model

STEPS = 5
TOTAL = OWN + LATER
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25, 3.0, 4.0, 5.0])


def _likelihood(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -(torch.log_softmax(output, 1) * y).sum(1)


def _mean_of_classes(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -(torch.log_softmax(output, 1) * y).mean(1)


def _jax_mean_of_classes(scores: jax.Array, y: jax.Array) -> jax.Array:
    return -(jax.nn.log_softmax(scores) * y).mean(1)


def _of_seven(scores: jax.Array, y: jax.Array) -> jax.Array:
    return -(jax.nn.log_softmax(scores) * jax.nn.one_hot(y[:, 0], TOTAL)).sum(1)


@pytest.mark.parametrize(
    ("options", "wanted", "one_hot"),
    [
        ({"loss": nn.CrossEntropyLoss()}, nn.CrossEntropyLoss(), False),
        ({"loss": nn.CrossEntropyLoss(WEIGHTS)}, nn.CrossEntropyLoss(WEIGHTS[:OWN]), False),
        ({"loss": partial(F.cross_entropy, weight=WEIGHTS)}, nn.CrossEntropyLoss(WEIGHTS[:OWN]), False),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, nn.CrossEntropyLoss(reduction="sum"), False),
        ({"loss": _likelihood, "y": torch.zeros(1, TOTAL)}, nn.CrossEntropyLoss(), True),
        ({"loss": _of_seven, "y": np.zeros((1, 1), np.int32)}, nn.CrossEntropyLoss(), None),
    ],
)
def test_steps_are_those_of_pytorch_over_known_classes(options: dict[str, Any], wanted: Any, one_hot: Any) -> None:
    x, y = rows_of_classes(4)
    with TrainingSession(built(optimizer="sgd", **options).data) as session:
        features, begun = torch.tensor(session.features(x)), session.parameters()
        weights = [torch.tensor(begun[name][..., :OWN], requires_grad=True) for name in ("last/w", "last/b")]
        optimizer = torch.optim.SGD(weights, 0.05)
        given = {True: np.eye(TOTAL, dtype=np.float32)[y], False: y, None: y[:, None]}[one_hot]
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = wanted(features @ weights[0] + weights[1], torch.tensor(y, dtype=torch.long))
            loss.backward()
            optimizer.step()
            found = session.train(x, given, learning_rate=0.05)
            assert found == pytest.approx(loss.item(), rel=1e-5)
        for name, weight in zip(("last/w", "last/b"), weights, strict=True):
            np.testing.assert_allclose(session.parameters()[name][..., :OWN], weight.detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.MultiMarginLoss(), "MultiMarginLoss"),
        (nn.MultiMarginLoss(weight=WEIGHTS), "MultiMarginLoss"),
        (F.multi_margin_loss, "MultiMarginLoss"),
        (nn.MultiLabelMarginLoss(), "MultiLabelMarginLoss"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss"),
        (partial(F.cross_entropy, label_smoothing=0.1), "CrossEntropyLoss"),
        (_mean_of_classes, "_mean_of_classes"),
        (_jax_mean_of_classes, "_jax_mean_of_classes"),
    ],
)
def test_losses_that_count_free_classes_are_refused_by_their_name(loss: Any, name: str) -> None:
    with pytest.raises(UsageError, match=rf"classes='4\+3': the loss {name} is not that of the known classes alone"):
        built(loss=loss)


def test_the_mean_of_a_margin_is_over_all_classes_in_pytorch() -> None:
    """Which is why it is refused: 4 / 7 of the loss of the known classes."""
    scores, y = torch.tensor([[0.5, -1.0, 0.2, 0.1]]), torch.tensor([1])
    free = F.pad(scores, (0, LATER), value=-30_000.0)
    loss = nn.MultiMarginLoss()
    assert loss(free, y).item() == pytest.approx(loss(scores, y).item() * OWN / TOTAL)


def test_a_mean_over_all_classes_is_refused_beside_one_class_too() -> None:
    model = small_model(classes=1)
    with pytest.raises(UsageError, match="the loss MultiMarginLoss is not that of the known classes alone"):
        built(model, classes="1+3", labels=None, loss=nn.MultiMarginLoss())
    built(model, classes="1+3", labels=None, loss=nn.CrossEntropyLoss(WEIGHTS[:4]))


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.MultiMarginLoss])
def test_weights_of_another_number_of_classes_are_refused_by_both(kind: Any) -> None:
    with pytest.raises(
        UsageError, match=f"the loss {kind.__name__} has weights of 4 classes, and the output has 7"
    ) as e:
        built(loss=kind(weight=WEIGHTS[:OWN]))
    assert any("classes='4+3': the output has 7 classes, those that may come too" in note for note in e.value.__notes__)


def test_a_loss_of_one_number_of_classes_is_told_of_room() -> None:
    def of_four(scores: jax.Array, y: jax.Array) -> jax.Array:
        return -(jax.nn.log_softmax(scores) * y * np.ones(OWN, np.float32)).sum(1)

    with pytest.raises(ValueError, match="Incompatible shapes") as refused:
        built(loss=of_four)
    assert any("classes='4+3': the output has 7 classes" in note for note in refused.value.__notes__)


def test_weights_of_all_classes_are_those_of_a_module_with_as_many() -> None:
    x, y = rows_of_classes(4)
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(INPUTS, 9), nn.ReLU(), nn.Linear(9, classes)) for classes in (OWN, TOTAL)]
    program = built(modules[0], inputs=(torch.zeros(1, INPUTS),), loss=nn.CrossEntropyLoss(), optimizer="sgd")
    with TrainingSession(program.data) as session:
        session.add_class("five")
        session.train(x, np.where(y == 3, OWN, y), learning_rate=0.05)
        held, found = session.state_dict(), session.infer(x)
    modules[1].load_state_dict(modules[0].state_dict() | held)
    with torch.no_grad():
        np.testing.assert_allclose(modules[1](torch.tensor(x)), found, rtol=1e-5, atol=1e-5)
    assert held["2.bias"][OWN] > -1 > held["2.bias"][OWN + 1 :].max() + 29_000
