"""Outputs and targets in dicts: what reaches a PyTorch loss, in which order, by which convention."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import distributions, nn
from torch.nn import functional as F

import pocketune
from converter.frontends.torch import loss_of
from converter.support.errors import UsageError
from tests.torch_frontend.losses.judged_losses import check_loss, graph_of

RNG = np.random.default_rng(0)
B, A, YB, YA = (RNG.standard_normal((4, 3)).astype(np.float32) for _ in range(4))
SIGNS = np.array([1, -1, -1, 1], np.float32)
#: In another order than the outputs.
Y = {"a": YA, "b": YB}


def flat(b: Any, a: Any, yb: Any, ya: Any) -> Any:
    return F.mse_loss(b, yb, reduction="none").mean(1) + 5 * (a - ya).abs().mean(1)


def joint(outputs: Any, y: Any) -> Any:
    return flat(outputs["b"], outputs.a, y["b"], y["a"])


def without_library(outputs: Any, y: Any) -> Any:
    return ((outputs["b"] - y["b"]) ** 2).mean(1) + 5 * abs(outputs["a"] - y["a"]).mean(1)


def separate(b: Any, a: Any) -> Any:
    return ((b - 2 * a) ** 2).mean(1)


def of_pairs(outputs: Any, y: Any) -> Any:
    b, a = outputs
    return y * (b - a).square().sum(1)


@pytest.mark.parametrize(("loss", "described"), [(flat, True), (joint, True), (joint, False), (without_library, True)])
def test_outputs_and_targets_of_the_same_names(loss: Any, described: bool) -> None:
    check_loss(loss, [B, A], Y, ("b", "a"), lambda b, a, y: flat(b, a, y["b"], y["a"]), described)


def test_outputs_in_a_tuple_with_one_target() -> None:
    check_loss(of_pairs, [B, A], SIGNS, eager=lambda b, a, y: of_pairs((b, a), y))


def test_a_loss_without_targets() -> None:
    check_loss(separate, [B, A], None, ("b", "a"))
    check_loss(lambda outputs: separate(outputs["b"], outputs[1]), [B, A], None, ("b", "a"), separate)
    check_loss(lambda rows: rows, [B[:, 0]], None)


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: (outputs["which"] - y).square().mean(1),
        lambda outputs, y: (outputs.logits - y).square().mean(1),
        lambda outputs, y: (outputs[0] - y).square().mean(1),  # the first row of a tensor broadcasts without an error
        lambda outputs, y: (next(iter(outputs)) - y).square().mean(1),
        lambda output, y: (output - y).square().mean(1),
        lambda output, y: F.mse_loss(output, y, reduction="none").mean(1),
    ],
)
def test_the_only_output_is_taken_out_of_what_the_module_returns(loss: Any) -> None:
    check_loss(loss, [B], YB, eager=lambda b, y: (b - y).square().mean(1))


def test_outputs_in_trees_are_called_by_their_paths() -> None:
    check_loss(
        lambda outputs, y: separate(outputs["heads"][0], outputs["heads"][1]) + y.sum(1),
        [B, A],
        YB,
        ("heads/0", "heads/1"),
        lambda b, a, y: separate(b, a) + y.sum(1),
    )


def ambiguous(b: Any, y: Any) -> Any:
    return torch.ones(4)


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda a, b, c, d, e: a, r"takes 5 arguments.*loss\(b, a, y\) or loss\(b, a\) or loss\(outputs, y\)"),
        (ambiguous, r"can be called as loss\(b, a\) and as loss\(outputs, y\): say which by y="),
        (nn.MSELoss(), "takes one output and the module has 2: name one for each"),
        (nn.TripletMarginLoss(), r"takes 3 outputs of the module \(anchor, positive, negative\), and it has 2"),
        (nn.CrossEntropyLoss, r"is the class CrossEntropyLoss.*make one of it, CrossEntropyLoss\(\)"),
        (lambda outputs, y: outputs["b"].sum(), r"one number for each row, shape \[batch\]; it returns \[\]"),
    ],
)
def test_what_is_refused_shows_both_conventions(loss: Any, match: str) -> None:
    graph, *_ = graph_of([B, A], ("b", "a"))
    with pytest.raises(UsageError, match=match):
        loss_of(loss, dict(graph.outputs))


class Pair(nn.Module):
    """Two layers, whose outputs are not in the order of their names."""

    def __init__(self) -> None:
        super().__init__()
        self.winner, self.loser = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return {"winner": self.winner(x), "loser": self.loser(x)}


def by_place(winner: Any, loser: Any, y_of_winner: Any, y_of_loser: Any) -> Any:
    return (winner - y_of_winner).square().mean(1) + (loser - y_of_loser).abs().mean(1)


def test_a_program_of_a_dict_has_the_order_of_the_module() -> None:
    torch.manual_seed(0)
    module, x = Pair(), torch.randn(4, 3)
    y = {"winner": torch.randn(4, 2), "loser": torch.randn(4, 2)}
    outputs = module(x)
    expected = F.mse_loss(outputs["winner"], y["winner"]) + F.l1_loss(outputs["loser"], y["loser"])
    built = pocketune.build(module, inputs=(x,), loss=[nn.MSELoss(), nn.L1Loss()], batch=4, check=False)
    arrays = {name: tensor.numpy() for name, tensor in y.items()}
    with pocketune.TrainingSession(built.data) as session:
        for given in (arrays, dict(reversed(arrays.items())), list(arrays.values())):
            np.testing.assert_allclose(session.evaluate(x.numpy(), given)["loss"], float(expected), rtol=1e-6)
        inferred = session.infer(x.numpy())
        assert list(inferred) == ["winner", "loser"]
        np.testing.assert_allclose(inferred["loser"], outputs["loser"].detach(), atol=1e-6)
    described = {name: jax.ShapeDtypeStruct((1, 2), "float32") for name in ("loser", "winner")}
    built = pocketune.build(module, inputs=(x,), loss=by_place, y=described, batch=4, check=False)
    with pocketune.TrainingSession(built.data) as session:
        np.testing.assert_allclose(session.evaluate(x.numpy(), arrays)["loss"], float(expected), rtol=1e-6)
        assert [spec.name for spec in built.manifest.signatures["train"].taking("target")] == ["y/winner", "y/loser"]


def test_a_loss_of_a_distribution_may_look_at_its_arguments() -> None:
    """PyTorch looks whether they are valid, by numbers that a trace has not."""

    def likelihood(mean: Any, spread: Any, y: Any) -> Any:
        drawn = distributions.Independent(distributions.Normal(mean, F.softplus(spread)), 1)
        return distributions.kl_divergence(drawn, drawn.expand(drawn.batch_shape)) - drawn.log_prob(y)

    def of_classes(logits: Any, y: Any) -> Any:
        chosen = distributions.Categorical(logits=logits)
        return -chosen.log_prob(y) - 0.1 * chosen.entropy()

    check_loss(likelihood, [B, A], YB)
    check_loss(of_classes, [B], np.array([0, 2, 1, 1], np.int32))
    assert distributions.Distribution._validate_args
