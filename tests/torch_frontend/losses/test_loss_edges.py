"""Losses where the code of PyTorch decides: saturated probabilities, ignored labels, zero targets, ties."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pocketune
from converter.support.errors import UsageError
from tests.torch_frontend.losses.judged_losses import check_loss

P = np.array([[0, 1, 0.5, 1e-8], [1, 0, 1 - 6e-8, 0.2], [0, 1, 0.3, 0.7]], np.float32)
BITS = np.array([[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0.5]], np.float32)
X = np.array([[0, 200, -200, 1], [90, -90, 0, 0.5], [1, 1, 2, -3]], np.float32)
PLACES = np.stack([X, 0.1 * X], 2)
NEAR = np.clip(X, -5, 5)
SIGNS = 2 * (BITS > 0.4).astype(np.float32) - 1
LABELS = np.array([1, -100, 3], np.int32)
SHARES = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 1]], np.float32)
PLUS_MINUS = np.array([1, -1, 1], np.float32)
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.25])
ZEROS = np.zeros_like(X)

#: A loss, the outputs that it reads, and the targets.
CASES: dict[str, tuple[Any, Sequence[np.ndarray], np.ndarray | None]] = {
    "binary, saturated": (nn.BCELoss(), [P], BITS),
    "binary, saturated, weighted": (nn.BCELoss(WEIGHTS), [P], BITS),
    "binary, saturated, summed": (nn.BCELoss(reduction="sum"), [P], BITS),
    "binary, saturated, a function": (F.binary_cross_entropy, [P], BITS),
    "binary, saturated, in an own function": (
        lambda x, y: F.binary_cross_entropy(x, y, reduction="none").mean(1),
        [P],
        BITS,
    ),
    "binary of logits": (nn.BCEWithLogitsLoss(), [X], BITS),
    "binary of logits, of weights for ones": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), [X], BITS),
    "classes": (nn.CrossEntropyLoss(), [X], LABELS),
    "classes, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), [X], LABELS),
    "classes, weighted, smoothed": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1), [X], LABELS),
    "classes, summed": (nn.CrossEntropyLoss(reduction="sum"), [X], LABELS),
    "classes, a function": (F.cross_entropy, [X], LABELS),
    "classes, a function with options": (
        partial(F.cross_entropy, label_smoothing=0.1, ignore_index=3),
        [X],
        LABELS[::2],
    ),
    "classes of places": (nn.CrossEntropyLoss(label_smoothing=0.2), [PLACES], np.stack([LABELS, LABELS], 1)),
    "classes, another label ignored": (nn.CrossEntropyLoss(ignore_index=-1), [X], np.array([1, -1, 3], np.int32)),
    "likelihood": (nn.NLLLoss(), [X], LABELS),
    "likelihood, weighted": (nn.NLLLoss(WEIGHTS), [X], LABELS),
    "likelihood, a function": (F.nll_loss, [X], LABELS),
    "shares": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2), [X], SHARES),
    "divergence from none": (nn.KLDivLoss(reduction="batchmean"), [X], SHARES),
    "poisson, not of logarithms": (nn.PoissonNLLLoss(log_input=False, full=True, eps=1e-3), [np.abs(X)], 3 * BITS),
    "poisson, full": (nn.PoissonNLLLoss(full=True), [NEAR], 3 * BITS),
    "normal, of no variance": (nn.GaussianNLLLoss(), [X, np.abs(X)], BITS),
    "normal, of the least variance": (nn.GaussianNLLLoss(full=True, eps=0.7), [X, np.abs(X)], BITS),
    "normal, in an own function": (
        lambda mean, variance, y: F.gaussian_nll_loss(mean, y, variance, reduction="none").mean(1),
        [X, np.abs(X)],
        BITS,
    ),
    "absolutes that are equal": (nn.L1Loss(), [X], X.copy()),
    "smooth without a curve": (nn.SmoothL1Loss(beta=0.0), [X], X.copy()),
    "margin of signs": (nn.SoftMarginLoss(), [NEAR], SIGNS),
    "several labels, in lists": (
        nn.MultiLabelMarginLoss(),
        [X],
        np.array([[1, 2, -1, 0], [3, -1, 0, 0], [0, 1, 2, 3]], np.int32),
    ),
    "cosine of nothing": (nn.CosineEmbeddingLoss(0.2), [X, ZEROS], PLUS_MINUS),
    "ranks that are equal": (nn.MarginRankingLoss(), [X[:, 0], X[:, 0].copy()], PLUS_MINUS),
    "triplet of no distance": (nn.TripletMarginLoss(eps=0.0), [X, X.copy(), BITS], None),
    "triplet of no distances": (nn.TripletMarginWithDistanceLoss(swap=True), [X, X.copy(), X.copy()], None),
}
QUICK = (
    "binary, saturated",
    "classes, smoothed",
    "likelihood",
    "classes, a function with options",
    "normal, of no variance",
)


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES])
def test_value_and_gradient_are_those_of_pytorch(case: str) -> None:
    loss, outputs, y = CASES[case]
    outputs = [x[: len(y)] for x in outputs] if y is not None else outputs
    check_loss(loss, outputs, y)


def test_ignored_labels_train_nothing_and_a_batch_in_parts_refuses_them() -> None:
    torch.manual_seed(0)
    module, x, labels = nn.Linear(4, 3), torch.randn(4, 4), torch.tensor([1, -100, 2, 0])
    loss = nn.CrossEntropyLoss()
    value = loss(module(x), labels)
    value.backward()
    y = labels.numpy().astype("int32")
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    built = pocketune.build(module, inputs=(x,), loss=loss, optimizer=optimizer, batch=4, check=False)
    with pocketune.TrainingSession(built.data) as session:
        np.testing.assert_allclose(session.train(x.numpy(), y), float(value.detach()), rtol=1e-6)
        moved = module.weight.detach() - session.state_dict()["weight"]
    np.testing.assert_allclose(moved, module.weight.grad, atol=1e-6)
    parts = pocketune.build(module, inputs=(x,), loss=loss, optimizer=optimizer, batch=4, micro_batch=2, check=False)
    with pocketune.TrainingSession(parts.data) as session:
        with pytest.raises(UsageError, match="labels go from 0 to 2"):
            session.train(x.numpy(), y)
        assert session.train(x.numpy(), abs(y) % 3) > 0
