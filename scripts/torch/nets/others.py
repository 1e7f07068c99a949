"""Modules written by hand, of what people write less often: views, windows, indices, ties, and layers by function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from scripts.torch.nets.tasks import CLASSES, Made, image_task, task_of, token_task

_WIDTH, _LENGTH, _WORDS = 16, 6, 30


class Written(nn.Module):
    """A forward pass written as a function of the module and its input; `head` follows it."""

    def __init__(self, forward: Callable[[Any, Any], Any], width: int, **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function, self.head = forward, nn.Linear(width, CLASSES)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Any) -> Any:
        return self.head(self.function(self, x))


def _tied(m: Any, x: Any) -> Any:
    return torch.tanh(functional.linear(torch.tanh(m.inner(x.mean(1))), m.inner.weight, m.bias))


def _written_into(m: Any, x: Any) -> Any:
    y = m.inner(x).clone()
    y[:, 0] = 0.0
    y[:, 1:3] = y[:, 3:5].detach()
    y[:, :3].relu_()
    return (y * 2).mean(1)


def _windows(m: Any, x: Any) -> Any:
    y = m.inner(functional.unfold(m.conv(x), 2, stride=2).transpose(1, 2)).transpose(1, 2)
    return functional.fold(y, (16, 16), 2, stride=2).mean((2, 3))


def _overlapping(m: Any, x: Any) -> Any:
    y = functional.unfold(m.conv(x), 3, padding=1, stride=2)
    return functional.relu(functional.fold(y, (16, 16), 3, padding=1, stride=2)).mean((2, 3))


def _last_seen(m: Any, x: Any) -> Any:
    last = (x[..., 0] > 0).sum(1).clamp(max=_LENGTH - 1)[:, None, None]
    return m.cells(x)[0].gather(1, last.expand(-1, 1, 8))[:, 0]


def _places(m: Any, tokens: Any) -> Any:
    seen = (tokens != 3).long()
    return (m.words(tokens) + m.places(torch.cumsum(seen, 1) * seen)).mean(1)


def _groups(m: Any, x: Any) -> Any:
    return torch.zeros(x.shape[0], 3, 8).index_add(1, torch.tensor([0, 1, 2, 0, 1, 2]), m.inner(x)).flatten(1)


def _extremes(m: Any, x: Any) -> Any:
    y = m.inner(x)
    return y.sort(1)[0][:, :3].mean(1) + y.topk(2, 1)[0].mean(1) + y.median(1)[0] + y.norm(dim=1) + y.std(1)


def _masked(m: Any, x: Any) -> Any:
    causal = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).triu(1)
    hidden = (x[..., 0] > 0.5) & (torch.arange(_LENGTH) > 0)
    return m.attend(x, x, x, attn_mask=causal, key_padding_mask=hidden, need_weights=False)[0].mean(1)


def _padded(m: Any, x: Any) -> Any:
    return m.third(functional.relu(m.second(m.first(x)))).mean((2, 3))


def _up(m: Any, x: Any) -> Any:
    return functional.relu(m.up(functional.silu(m.norm(m.down(x))))).mean((2, 3))


def _last_channels(m: Any, x: Any) -> Any:
    return m.conv(x.to(memory_format=torch.channels_last)).contiguous().view(x.shape[0], -1)


def _translated(m: Any, x: Any) -> Any:
    return m.net(x, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(_LENGTH), tgt_is_causal=True).mean(1)


def _rows(forward: Callable[[Any, Any], Any], width: int, layers: Callable[[], dict[str, Any]]) -> Made:
    return Written(forward, width, **layers()), task_of((_LENGTH, _WIDTH))


def _images(forward: Callable[[Any, Any], Any], width: int, layers: Callable[[], dict[str, Any]]) -> Made:
    return Written(forward, width, **layers()), image_task(16)


def _tokens(forward: Callable[[Any, Any], Any], width: int, layers: Callable[[], dict[str, Any]]) -> Made:
    return Written(forward, width, **layers()), token_task(_LENGTH, _WORDS, classes=CLASSES)


def _inner(width: int = _WIDTH) -> dict[str, Any]:
    return {"inner": nn.Linear(_WIDTH, width)}


def _conv(**more: Any) -> dict[str, Any]:
    return {"conv": nn.Conv2d(3, 4, 3, padding=1), **more}


def _padding() -> dict[str, Any]:
    kinds = {"first": "reflect", "second": "circular", "third": "replicate"}
    return {
        name: nn.Conv2d(8 if i else 3, 8, 3, padding=1, padding_mode=mode)
        for i, (name, mode) in enumerate(kinds.items())
    }


NETS: dict[str, Callable[[], Made]] = {
    "tied_functional": partial(_rows, _tied, _WIDTH, lambda: {**_inner(), "bias": nn.Parameter(torch.zeros(_WIDTH))}),
    "written_into": partial(_rows, _written_into, _WIDTH, _inner),
    "windows": partial(_images, _windows, 4, lambda: _conv(**_inner())),
    "overlapping_windows": partial(_images, _overlapping, 4, _conv),
    "last_seen": partial(_rows, _last_seen, 8, lambda: {"cells": nn.GRU(_WIDTH, 8, batch_first=True)}),
    "places": partial(_tokens, _places, 8, lambda: {"words": nn.Embedding(_WORDS, 8), "places": nn.Embedding(10, 8)}),
    "groups": partial(_rows, _groups, 24, lambda: _inner(8)),
    "extremes": partial(_rows, _extremes, _WIDTH, _inner),
    "masked": partial(_rows, _masked, _WIDTH, lambda: {"attend": nn.MultiheadAttention(_WIDTH, 4, batch_first=True)}),
    "padding_modes": partial(_images, _padded, 8, _padding),
    "channels_last": partial(_images, _last_channels, 4 * 16 * 16, _conv),
    "bag_of_maxima": partial(
        _tokens, lambda m, t: m.bag(t), 8, lambda: {"bag": nn.EmbeddingBag(_WORDS, 8, mode="max")}
    ),
    "transformer": partial(
        _rows, _translated, _WIDTH, lambda: {"net": nn.Transformer(_WIDTH, 4, 1, 1, 24, batch_first=True)}
    ),
    "upwards": partial(
        _images,
        _up,
        6,
        lambda: {
            "down": nn.Conv2d(3, 8, 3, 2, 1),
            "norm": nn.GroupNorm(2, 8),
            "up": nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, groups=2),
        },
    ),
}
