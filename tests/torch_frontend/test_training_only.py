"""What a module does in training alone: a note says that a program leaves it out, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

import pocketune
from converter.frontends.torch import Model, import_torch, read_optimizer
from converter.support.errors import PocketuneError, UnsupportedError, UsageError

X = torch.arange(20.0).reshape(4, 5).cos()


class Layer(nn.Module):
    """A layer, a buffer, and a user's own code."""

    def __init__(self, code: Any) -> None:
        super().__init__()
        self.inner, self.other, self.code = nn.Linear(5, 6), nn.Linear(6, 2), code
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x: Any) -> Any:
        return self.code(self, self.inner(x))


def by_hand(m: Any, h: Any) -> Any:
    mean = h.mean(0) if m.training else m.mean
    return h - mean


def codebook(m: Any, h: Any) -> Any:
    if m.training:
        m.mean.mul_(0.9).add_(h.detach().mean(0))
    return h - m.mean


def auxiliary(m: Any, h: Any) -> Any:
    return (h, m.other(h)) if m.training else h


def random_slopes(m: Any, h: Any) -> Any:
    return F.rrelu(h, training=m.training)


def alpha(m: Any, h: Any) -> Any:
    return F.alpha_dropout(h, 0.2, m.training)


def attended(m: Any, h: Any) -> Any:
    q = h[:, None]
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.2 if m.training else 0.0)[:, 0]


def noisy(m: Any, h: Any) -> Any:
    return h + torch.randn_like(h) if m.training else h


def normed(m: Any, h: Any) -> Any:
    return F.batch_norm(h, m.mean, m.variance, training=m.training)


def dropped(m: Any, h: Any) -> Any:
    return F.dropout1d(F.dropout(h, 0.2, training=m.training)[..., None], 0.2, training=m.training)[..., 0]


def asks_in_vain(m: Any, h: Any) -> Any:
    return h * 2 if m.training and h.shape[0] > 99 else h


def notes_of(module: nn.Module, x: torch.Tensor = X) -> dict[str, str]:
    """What is left out, by the layer."""
    return {note.subject: note.why for note in import_torch(Model(module, (x,)), 4).notes if note.status == "left out"}


@pytest.mark.parametrize("code", [by_hand, codebook, auxiliary, random_slopes, alpha, attended, noisy, normed])
@pytest.mark.parametrize("trains", [False, True])
def test_code_that_computes_otherwise_in_training_is_said_with_its_line(code: Any, trains: bool) -> None:
    module = nn.Sequential(Layer(code)).train(trains)
    line = code.__code__.co_firstlineno
    why = notes_of(module)["0"]
    assert any(f"test_training_only.py:{n}" in why for n in range(line + 1, line + 4)), why
    assert "computes as in eval()" in why
    assert module[0].training == trains
    assert "training" not in vars(nn.Module)


@pytest.mark.parametrize("code", [dropped, asks_in_vain])
def test_code_that_only_drops_says_nothing(code: Any) -> None:
    assert not any("self.training" in why for why in notes_of(Layer(code)).values())


@pytest.mark.parametrize(
    ("module", "layer", "match"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.AlphaDropout(0.2)), "1", "AlphaDropout of 0.2"),
        (nn.Sequential(nn.Linear(5, 4), nn.FeatureAlphaDropout(0.2)), "1", "FeatureAlphaDropout of 0.2"),
        (nn.Sequential(nn.Linear(5, 4), nn.RReLU()), "1", "random slopes from 0.125"),
        (nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(5, 4))), "0", "its spectral norm"),
        (
            torch.nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)),
            "parametrizations.weight.0",
            "its spectral norm",
        ),
        (nn.TransformerEncoderLayer(5, 1, 8, 0.1), "self_attn", "dropout of 0.1 on the weights of attention"),
    ],
)
def test_layers_that_act_in_training_alone_are_said(module: nn.Module, layer: str, match: str) -> None:
    assert match in notes_of(module)[layer]


def test_what_evaluates_in_a_module_that_trains_says_nothing() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.RReLU())
    module[1].eval()
    assert not notes_of(module)


def test_batch_normalization_that_is_always_by_the_batch_is_so() -> None:
    module = Layer(lambda m, h: F.batch_norm(h, m.mean, m.variance, training=True))
    program = pocketune.build(module, inputs=(X,), loss=nn.MSELoss(), optimizer="sgd", batch=4, check=False)
    with pocketune.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(X.numpy()), module(X).detach(), atol=1e-5)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.Dropout(0.2)])
def test_a_program_that_was_exported_in_train_says_so(layer: nn.Module, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(5, 4), layer).train()
    torch.export.save(torch.export.export(module, (X,)), tmp_path / "trains.pt2")
    with pytest.raises(UnsupportedError, match=r"exported in train\(\)[\s\S]*module.eval\(\)"):
        import_torch(Model(tmp_path / "trains.pt2"), 4)


def hooked_before(optimizer: Any) -> Any:
    return optimizer.register_step_pre_hook(lambda *_: None)


def hooked_after(optimizer: Any) -> Any:
    return optimizer.register_step_post_hook(lambda *_: None)


def hooked_all(optimizer: Any) -> Any:
    return register_optimizer_step_pre_hook(lambda *_: None)


@pytest.mark.parametrize("hook", [hooked_before, hooked_after, hooked_all])
def test_hooks_of_optimizers_are_refused(hook: Any) -> None:
    module = nn.Linear(5, 4)
    names = {id(p): name for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    handle = hook(optimizer)
    try:
        for given in (optimizer, schedule):
            with pytest.raises(UsageError, match=r"SGD has a hook on its steps.*remove\(\)"):
                read_optimizer(given, names)
    finally:
        handle.remove()
    assert read_optimizer(schedule, names).name == "SGD of torch.optim"
    optimizer.step = lambda: None  # type: ignore[method-assign]
    with pytest.raises(PocketuneError, match="another step in the place of its own"):
        read_optimizer(optimizer, names)


def test_a_column_is_compared_row_by_row_with_a_note() -> None:
    module = nn.Linear(5, 1)
    program = pocketune.build(module, inputs=(X,), loss=nn.MSELoss(), optimizer="sgd", batch=4, check=False)
    assert any("each number is compared with that of its own row" in note.why for note in program.notes)
    y = np.arange(4, dtype=np.float32)
    expected = float(F.mse_loss(module(X)[:, 0], torch.from_numpy(y)).detach())
    with pocketune.TrainingSession(program.data) as session:
        for given in (y, y[:, None]):
            np.testing.assert_allclose(session.evaluate(X.numpy(), given)["loss"], expected, rtol=1e-5)
