"""Texts whose blocks a last layer reads: pooled as the net itself brings its positions together, in any idiom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import pocketune
from converter.support.errors import UsageError

LENGTH = 5
#: Brings what is before it [rows, positions, 4] together, by a mask [rows, positions].
End = Callable[["Net", Any, Any], Any]


class Net(nn.Module):
    """Ids through two layers to the head."""

    def __init__(self, end: End) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.end, self.embed = end, nn.Embedding(9, 4)
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.conv, self.score = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 1)
        self.rnn, self.wide = nn.GRU(4, 4, batch_first=True), nn.GRU(4, LENGTH, batch_first=True)

    def reads(self, x: Any) -> list[Any]:
        """Return what each of both layers reads, and what the second gives."""
        values = [self.embed(x)]
        for layer in (self.first, self.second):
            values.append(torch.tanh(layer(values[-1])))
        return values

    def forward(self, x: Any) -> Any:
        return self.head(self.end(self, self.reads(x)[-1], x > 0))


def _expanded(net: Net, y: Any, mask: Any) -> Any:
    """As sentence encoders do it."""
    wide = mask.unsqueeze(-1).expand(y.size()).float()
    return (y * wide).sum(1) / wide.sum(1).clamp(min=1e-9)


def _convolved(net: Net, y: Any, mask: Any) -> Any:
    return (net.conv(y.transpose(1, 2)) * mask.float()[:, None]).sum(2) / mask.sum(1, keepdim=True)


def _attended(net: Net, y: Any, mask: Any) -> Any:
    return (torch.softmax(net.score(y).masked_fill(~mask[..., None], -1e9), 1) * y).sum(1)


MASKED: dict[str, End] = {
    "expanded": _expanded,
    "filled": lambda net, y, m: y.masked_fill(~m[..., None], 0.0).sum(1) / m.sum(1, keepdim=True),
    "chosen": lambda net, y, m: torch.where(m[..., None], y, torch.zeros(())).sum(1) / m.sum(1, keepdim=True),
    "product": lambda net, y, m: (m.float()[:, None] @ y)[:, 0] / m.sum(1, keepdim=True),
    "einsum": lambda net, y, m: torch.einsum("nl,nlc->nc", m.float(), y) / m.sum(1, keepdim=True),
    "channels first": _convolved,
}
TOKENS: dict[str, tuple[int, End]] = {
    "row by row": (2, lambda net, y, m: y[:, 2]),
    "channels first": (4, lambda net, y, m: net.conv(y.transpose(1, 2))[:, :, -1]),
}
#: Weights that are learned and may be negative are no mask: their sum may be zero.
MEANS: dict[str, End] = {
    "plain": lambda net, y, m: y.mean(1),
    "signed": lambda net, y, m: (torch.tanh(net.score(y)) * y).sum(1),
    "largest": lambda net, y, m: torch.tanh(net.conv(y.transpose(1, 2))).amax(2),
    "recurrent": lambda net, y, m: net.rnn(y)[0][:, -1],
    "recurrent, as many channels as positions": lambda net, y, m: net.wide(y)[0][:, -1, :4],
}


def _features(net: Net, batch: int, x: Any) -> np.ndarray:
    """Return what the two layers' inputs are pooled to, [rows, 8]."""
    made = pocketune.build(
        net.eval(),
        inputs=(x[:1],),
        loss="sparse_categorical_crossentropy",
        update="head",
        head="class_means",
        head_reads="blocks",
        batch=batch,
        check=False,
    )
    with pocketune.TrainingSession(made.data) as session:
        own = 4
        return session.features(x.numpy().astype(np.int32))[:, own : own + 8]


def _texts() -> Any:
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, (7, LENGTH))
    for row, length in zip(ids, (1, 2, 3, 4, 5, 5, 2), strict=True):
        row[length:] = 0
    return torch.from_numpy(ids)


@pytest.mark.quick
@pytest.mark.parametrize("batch", [2, LENGTH])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_before_the_head_is_that_of_blocks(name: str, batch: int) -> None:
    """Also where a batch has as many rows as a text has positions."""
    net, x = Net(MASKED[name]), _texts()
    mask = (x > 0).float()[..., None]
    with torch.no_grad():
        wanted = [(value * mask).sum(1) / mask.sum(1) for value in net.reads(x)[:2]]
    np.testing.assert_allclose(_features(net, batch, x), torch.cat(wanted, 1).numpy(), atol=1e-5)


@pytest.mark.parametrize("batch", [2, LENGTH])
def test_attention_before_the_head_is_that_of_blocks(batch: int) -> None:
    net, x = Net(_attended), _texts()
    with torch.no_grad():
        values = net.reads(x)
        weights = torch.softmax(net.score(values[2]).masked_fill(x[..., None] == 0, -1e9), 1)
        wanted = torch.cat([(weights * value).sum(1) for value in values[:2]], 1)
    np.testing.assert_allclose(_features(net, batch, x), wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("batch", [2, LENGTH])
@pytest.mark.parametrize("name", TOKENS)
def test_a_token_that_the_head_reads_is_that_of_blocks(name: str, batch: int) -> None:
    position, end = TOKENS[name]
    net, x = Net(end), _texts()
    with torch.no_grad():
        wanted = torch.cat([value[:, position] for value in net.reads(x)[:2]], 1)
    np.testing.assert_allclose(_features(net, batch, x), wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("batch", [2, LENGTH])
@pytest.mark.parametrize("name", MEANS)
def test_else_it_is_the_mean(name: str, batch: int) -> None:
    net, x = Net(MEANS[name]), _texts()
    with torch.no_grad():
        wanted = torch.cat([value.mean(1) for value in net.reads(x)[:2]], 1)
    np.testing.assert_allclose(_features(net, batch, x), wanted.numpy(), atol=1e-5)


def test_positions_first_are_refused() -> None:
    """As many steps as rows, so that shapes tell nothing: without a word, rows of others would be read."""

    def net(params: Any, x: Any) -> Any:
        steps = jnp.tanh(x[:, :, ::-1].swapaxes(0, 1)[::-1])  # time is the first axis, and the rows are the second
        return jnp.tanh(steps @ params["first"]).mean(0) @ params["w"] + params["b"]

    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape).astype("f") for name, shape in (("first", (3, 4)), ("w", (4, 2)), ("b", 2))}
    model = pocketune.Model(net, params, [jax.ShapeDtypeStruct((1, 4, 3), "float32")])
    with pytest.raises(UsageError, match="the rows of a batch are not its first axis"):
        pocketune.build(model, batch=4, update="full", head_reads="blocks")
