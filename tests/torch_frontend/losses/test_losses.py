"""Losses of `torch.nn` and functions of tensors: value and gradient are PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from converter.frontends.torch import is_loss, loss_of
from converter.support.errors import UsageError
from tests.torch_frontend.losses.judged_losses import check_loss, graph_of

ROWS, CLASSES = 4, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, CLASSES)).astype(np.float32)
IMAGE = RNG.standard_normal((ROWS, CLASSES, 2, 3)).astype(np.float32)
LABELS = np.array([1, 2, 2, 4], np.int32)
PLACES = RNG.integers(0, CLASSES, (ROWS, 2, 3)).astype(np.int32)
VALUES = RNG.standard_normal(X.shape).astype(np.float32)
BITS = RNG.integers(0, 2, X.shape).astype(np.float32)
SOFT = RNG.dirichlet(np.ones(CLASSES), ROWS).astype(np.float32)
SIGNS = np.array([1, -1, -1, 1], np.float32)
LOG = np.log(SOFT)
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25, 3.0])


class Scaled(nn.Module):
    """A module of a user's own, with or without a parameter."""

    def __init__(self, trains: bool) -> None:
        super().__init__()
        self.inner = nn.MSELoss(reduction="none")
        self.scale = nn.Parameter(WEIGHTS, requires_grad=trains)

    def forward(self, outputs: Any, y: Any) -> Any:
        return self.inner(outputs * self.scale, y).mean(1)


#: A loss, the outputs that it reads, and the targets.
CASES: dict[str, tuple[Any, Sequence[np.ndarray], np.ndarray | None]] = {
    "cross entropy": (nn.CrossEntropyLoss(), [X], LABELS),
    "cross entropy, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), [X], LABELS),
    "cross entropy, weighted": (nn.CrossEntropyLoss(WEIGHTS), [X], LABELS),
    "cross entropy, weighted and smoothed": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2), [X], LABELS),
    "cross entropy, one ignored": (nn.CrossEntropyLoss(ignore_index=2), [X], LABELS),
    "cross entropy, weighted, one ignored": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=2), [X], LABELS),
    "cross entropy, summed": (nn.CrossEntropyLoss(reduction="sum"), [X], LABELS),
    "cross entropy, weighted, summed": (nn.CrossEntropyLoss(WEIGHTS, reduction="sum"), [X], LABELS),
    "cross entropy, one ignored, summed": (nn.CrossEntropyLoss(ignore_index=2, reduction="sum"), [X], LABELS),
    "cross entropy of places, one ignored, summed": (
        nn.CrossEntropyLoss(WEIGHTS, ignore_index=2, reduction="sum"),
        [IMAGE],
        PLACES,
    ),
    "cross entropy of shares, summed": (nn.CrossEntropyLoss(reduction="sum"), [X], SOFT),
    "cross entropy of shares": (nn.CrossEntropyLoss(), [X], SOFT),
    "cross entropy of shares, weighted": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1), [X], SOFT),
    "cross entropy of places": (nn.CrossEntropyLoss(), [IMAGE], PLACES),
    "cross entropy of places, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), [IMAGE], PLACES),
    "cross entropy of places, summed": (nn.CrossEntropyLoss(reduction="sum"), [IMAGE], PLACES),
    "cross entropy of places, weighted": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=1), [IMAGE], PLACES),
    "likelihood": (nn.NLLLoss(), [LOG], LABELS),
    "likelihood, weighted": (nn.NLLLoss(WEIGHTS, ignore_index=4), [LOG], LABELS),
    "likelihood of places": (nn.NLLLoss(reduction="sum"), [IMAGE], PLACES),
    "binary": (nn.BCELoss(), [SOFT], BITS),
    "binary, weighted": (nn.BCELoss(WEIGHTS), [SOFT], BITS),
    "binary of logits": (nn.BCEWithLogitsLoss(), [X], BITS),
    "binary of logits, weighted": (nn.BCEWithLogitsLoss(WEIGHTS, pos_weight=WEIGHTS.flip(0)), [X], BITS),
    "binary of logits of places, summed": (nn.BCEWithLogitsLoss(reduction="sum"), [IMAGE], (IMAGE > 0).astype("f4")),
    "binary of logits, summed": (nn.BCEWithLogitsLoss(reduction="sum", pos_weight=WEIGHTS), [X], BITS),
    "squares": (nn.MSELoss(), [IMAGE], IMAGE[::-1].copy()),
    "squares, summed": (nn.MSELoss(reduction="sum"), [IMAGE], IMAGE[::-1].copy()),
    "absolutes": (nn.L1Loss(), [X], VALUES),
    "absolutes, summed": (nn.L1Loss(reduction="sum"), [X], VALUES),
    "smooth": (nn.SmoothL1Loss(beta=0.7), [X], VALUES),
    "huber": (nn.HuberLoss(delta=0.7), [X], VALUES),
    "huber, summed": (nn.HuberLoss(reduction="sum"), [X], VALUES),
    "divergence": (nn.KLDivLoss(), [LOG], SOFT[::-1].copy()),
    "divergence of rows": (nn.KLDivLoss(reduction="batchmean"), [LOG], SOFT[::-1].copy()),
    "divergence of logarithms": (nn.KLDivLoss(reduction="batchmean", log_target=True), [LOG], LOG[::-1].copy()),
    "poisson": (nn.PoissonNLLLoss(), [X], np.abs(VALUES)),
    "margin of signs": (nn.SoftMarginLoss(), [X], 2 * BITS - 1),
    "hinge of distances": (nn.HingeEmbeddingLoss(margin=0.8), [X], 2 * BITS - 1),
    "several labels": (nn.MultiLabelSoftMarginLoss(), [X], BITS),
    "margin of classes": (nn.MultiMarginLoss(margin=0.9), [X], LABELS),
    "cosine": (nn.CosineEmbeddingLoss(margin=0.1), [X, VALUES], SIGNS),
    "ranking": (nn.MarginRankingLoss(margin=0.3), [X[:, 0], VALUES[:, 0]], SIGNS),
    "triplet": (nn.TripletMarginLoss(margin=0.9), [X, VALUES, LOG], None),
    "likelihood of a normal distribution": (nn.GaussianNLLLoss(full=True, eps=0.2), [X, np.abs(VALUES)], BITS),
    "triplet by a distance": (
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(p=1), margin=0.9),
        [X, VALUES, LOG],
        None,
    ),
    "a function of torch": (F.cross_entropy, [X], LABELS),
    "another function of torch": (F.smooth_l1_loss, [X], VALUES),
    "an own function": (lambda outputs, y: F.mse_loss(outputs, y, reduction="none").mean(1), [X], VALUES),
    "an own module": (Scaled(trains=False), [X], VALUES),
    "an own function of several": (lambda a, b, y: ((a - b).square().sum(1) - y).abs(), [X, VALUES], SIGNS),
}


#: One of each kind; the others are slow only as they are many.
QUICK = (
    "cross entropy, weighted and smoothed",
    "cross entropy of places, one ignored, summed",
    "binary of logits, summed",
    "squares, summed",
    "divergence of rows",
    "cosine",
    "triplet",
    "a function of torch",
    "an own module",
    "an own function of several",
)


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES])
def test_value_and_gradient_are_those_of_pytorch(case: str) -> None:
    loss, outputs, y = CASES[case]
    check_loss(loss, outputs, y)


def mean_of_all(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(outputs, y)


def named_elsewhere(outputs: Any, y: Any) -> Any:
    return mean_of_all(outputs, y)


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (mean_of_all, r"mean_of_all must return one number for each row.*reduction='none'"),
        (nn.MSELoss(reduction="none"), "MSELoss has reduction='none'"),
        (Scaled(trains=True), r"Scaled has parameters of its own \(scale\), which a step would not train"),
        (nn.CTCLoss(), "CTCLoss takes the lengths of each row apart.*use loss='ctc' with y="),
    ],
)
def test_what_is_refused(loss: Any, match: str) -> None:
    graph, *_ = graph_of([X])
    with pytest.raises(UsageError, match=match):
        loss_of(loss, dict(graph.outputs))


def test_losses_of_pytorch_are_known_from_others() -> None:
    ours: list[Any] = [nn.L1Loss(), F.l1_loss, mean_of_all, named_elsewhere, lambda x, y: F.l1_loss(x, y)]
    assert all(map(is_loss, ours))
    plain = [lambda rows: rows, lambda x, y: (x - y).abs()]
    assert not any(map(is_loss, plain))
    assert all(is_loss(loss, of_module=True) for loss in plain)
    assert not any(is_loss(loss, of_module=True) for loss in (optax.huber_loss, lambda x, y: jnp.abs(x - y), "mse"))
    assert not any(map(is_loss, (optax.huber_loss, lambda x, y: jnp.abs(x - y), np.abs, "mse")))
