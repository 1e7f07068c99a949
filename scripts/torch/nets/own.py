"""Modules written by hand, of what people write: one kind each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from scripts.torch.nets.tasks import CLASSES, Made, image_task, task_of, token_task

_WIDTH, _HEADS, _LENGTH, _WORDS = 16, 4, 6, 30


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


class Attention(nn.Module):
    """Attention by `scaled_dot_product_attention` under a mask of one of its forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.qkv, self.head = form, nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, CLASSES)
        self.register_buffer("bias", torch.randn(_HEADS, _LENGTH, _LENGTH))
        self.slopes = nn.Parameter(torch.randn(_HEADS, 1, 1))  # which one form alone uses

    def mask(self, x: Any) -> Any:
        """Return the mask: of places that are known, or by the input; bool or float."""
        seen = (x.mean(-1) > -0.3)[:, None, None, :]
        forms: dict[str, Callable[[], Any]] = {
            "none": lambda: None,
            "causal": lambda: None,
            "bool": lambda: torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).tril(1),
            "float": lambda: torch.zeros(_LENGTH, _LENGTH).masked_fill(self.bias[0] > 0.5, float("-inf")),
            "bias": lambda: self.bias,
            "learned": lambda: self.bias * self.slopes,
            "padding": lambda: seen,
            "both": lambda: seen & torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).tril(),
            "added": lambda: torch.where(seen, 0.0, torch.finfo(torch.float32).min),
        }
        return forms[self.form]()

    def forward(self, x: Any) -> Any:
        rows, places, _ = x.shape
        q, k, v = self.qkv(x).view(rows, places, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, self.mask(x), is_causal=self.form == "causal")
        return self.head(y.transpose(1, 2).reshape(rows, places, -1).mean(1))


class Decoder(nn.Module):
    """A block with grouped queries, rotary embeddings, RMSNorm, a gate, and a head that is tied to the embedding."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.words, self.groups = nn.Embedding(_WORDS, _WIDTH), groups
        self.before, self.after = nn.RMSNorm(_WIDTH), nn.RMSNorm(_WIDTH, eps=1e-6)
        size = _WIDTH // _HEADS
        self.q, self.k, self.v = (nn.Linear(_WIDTH, n * size, bias=False) for n in (_HEADS, groups, groups))
        self.gate, self.up, self.down = nn.Linear(_WIDTH, 24), nn.Linear(_WIDTH, 24), nn.Linear(24, _WIDTH)
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)
        self.head.weight = self.words.weight
        angles = torch.outer(torch.arange(_LENGTH), 100.0 ** (-torch.arange(size // 2) * 2 / size))
        self.register_buffer("angles", torch.cat((angles, angles), -1), persistent=False)

    def transposed(self, x: Any) -> Any:
        """Return x [rows, heads, places, size], turned by its place."""
        low, high = x.chunk(2, -1)
        return x * self.angles.cos() + torch.cat((-high, low), -1) * self.angles.sin()

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        y = self.before(x)
        q, k, v = (f(y).unflatten(-1, (-1, _WIDTH // _HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(
            self.transposed(q), self.transposed(k), v, is_causal=True, enable_gqa=True
        )
        x = x + y.transpose(1, 2).flatten(2)
        y = self.after(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return self.head(x).mean(1)


class WithPadding(nn.Module):
    """`nn.TransformerEncoder`, its fast path and padding."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 24, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, CLASSES)

    def forward(self, tokens: Any) -> Any:
        tokens = torch.where(tokens > 20, 0, tokens)
        return self.head(self.encoder(self.words(tokens), src_key_padding_mask=tokens == 0)[:, 0])


class Multihead(nn.Module):
    """`nn.MultiheadAttention` across two sequences, of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(_WIDTH, _HEADS, kdim=8, vdim=8, add_bias_kv=True, batch_first=True)
        self.head = nn.Linear(_WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        y, weights = self.attend(x, x[..., :8], x[..., 8:], average_attn_weights=False)
        return self.head(y.mean(1)) + weights.sum((1, 2, 3))[:, None]


class Recurrent(nn.Module):
    """A recurrent module and a head behind its last output."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.cells = kind(_WIDTH, 10, batch_first=True, **options)
        width = options.get("proj_size", 10) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][:, -1])


class Flattened(nn.Module):
    """Batch normalization of the places of all rows, flattened: as LeViT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(_WIDTH, 12, bias=False), nn.BatchNorm1d(12)
        self.outer, self.last, self.head = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        y = functional.hardswish(self.norm(y.flatten(0, 1)).reshape_as(y))
        return self.head(self.last(self.outer(y).reshape(-1, 8)).view(*x.shape[:2], 8).mean(1))


class Cells(nn.Module):
    """A loop over an `nn.LSTMCell` and an `nn.GRUCell`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.LSTMCell(_WIDTH, 10), nn.GRUCell(10, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        state, h = None, x.new_zeros(x.shape[0], 8)
        for place in x.unbind(1):
            state = self.first(place, state)
            h = self.second(state[0], h)
        return self.head(h)


class UNet(nn.Module):
    """Down and up again: pools, `Upsample`, transposed convolutions, skips; an answer at each place."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.low = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True))
        align = {} if mode == "nearest" else {"align_corners": False}
        self.up = nn.ConvTranspose2d(8, 8, 2, 2) if mode == "learned" else nn.Upsample(None, 2, mode, **align)
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Any) -> Any:
        high = self.down(x)
        return self.head(torch.cat((high, self.up(functional.gelu(self.low(high)))), 1))


class SqueezeExcite(nn.Module):
    """The factor of each channel by all places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.excite(y))


class LayerScale(nn.Module):
    """A learned factor of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x: Any) -> Any:
        return x * self.gamma


class StochasticDepth(nn.Module):
    """Nothing but x, where nothing is random: as torchvision has it."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Any) -> Any:
        return x


class Bags(nn.Module):
    """`nn.EmbeddingBag`: means, sums and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.sum = (
            nn.EmbeddingBag(_WORDS, 8, mode="mean", padding_idx=3),
            nn.EmbeddingBag(_WORDS, 8, mode="sum"),
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Any) -> Any:
        return self.head(
            torch.cat(
                (self.mean(tokens), self.sum(tokens, per_sample_weights=(tokens / _WORDS).to(self.sum.weight))), 1
            )
        )


class Experts(nn.Module):
    """Experts, mixed by the largest two of their gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, 4)
        self.first, self.second = nn.Parameter(torch.randn(4, _WIDTH, 8) / 4), nn.Parameter(torch.randn(4, 8, 8) / 3)
        self.head = nn.Bilinear(8, _WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        best, places = self.gate(x).topk(2, -1)
        share = x.new_zeros(x.shape[0], 4).scatter(1, places, best.softmax(-1))
        y = torch.einsum("bi,eio->beo", x, self.first)
        y = torch.einsum("beo,eop,be->bp", functional.mish(y), self.second, share)
        return self.head(y, x)


def _images(*layers: nn.Module, size: int = 16) -> Made:
    return nn.Sequential(*layers), image_task(size)


def _rows(module: Callable[[], nn.Module], shape: tuple[int, ...] = (_LENGTH, _WIDTH)) -> Made:
    return module(), task_of(shape)


def _tokens(module: Callable[[], nn.Module]) -> Made:
    return module(), token_task(_LENGTH, _WORDS, classes=CLASSES)


def _places(mode: str) -> Made:
    task = image_task(8)
    y = torch.randint(0, CLASSES, (4, 8, 8), generator=torch.Generator().manual_seed(2))
    return UNet(mode), type(task)(task.inputs, y, task.loss)


def _end(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


def _mobile() -> Made:
    inner = [nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.Hardswish()]
    inner += [nn.Conv2d(24, 24, 5, padding=2, groups=24, bias=False), nn.BatchNorm2d(24, momentum=0.01), nn.Hardswish()]
    inner += [SqueezeExcite(24), nn.Conv2d(24, 8, 1), LayerScale(8), StochasticDepth(0.2, "row")]
    return _images(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8, momentum=None), Residual(*inner), *_end(8))


def _shuffled() -> Made:
    layers = [nn.Conv2d(3, 16, 3, padding="same"), nn.PReLU(16), nn.PixelShuffle(2), nn.Conv2d(4, 8, 3, dilation=2)]
    return _images(*layers, nn.PixelUnshuffle(2), nn.ReLU6(), nn.ChannelShuffle(4), nn.LocalResponseNorm(3), *_end(32))


def _weighed(norm: Callable[[nn.Module], nn.Module]) -> Made:
    made = _images(norm(nn.Conv2d(3, 8, 3)), nn.Tanh(), nn.AvgPool2d(2), *_end(8)[:-1], norm(nn.Linear(8, CLASSES)))
    with torch.no_grad():  # of weights that hooks make none can be copied
        made[0](*made[1].inputs)
    return made


def _sound() -> Made:
    layers = [nn.Conv1d(1, 8, 9, 4), nn.GroupNorm(1, 8), nn.GELU("tanh"), nn.ConstantPad1d((4, 0), 0.0)]
    layers += [nn.Conv1d(8, 16, 3, dilation=2, groups=2), nn.BatchNorm1d(16), nn.ELU(), nn.MaxPool1d(3, 2, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(48, CLASSES)), task_of((1, 128))


_FORMS = ("none", "causal", "bool", "float", "bias", "learned", "padding", "both", "added")
NETS: dict[str, Callable[[], Made]] = {
    **{f"attention_{form}": partial(_rows, partial(Attention, form)) for form in _FORMS},
    "decoder": partial(_tokens, Decoder),
    "encoder": partial(_tokens, partial(WithPadding, False)),
    "encoder_norm_first": partial(_tokens, partial(WithPadding, True)),
    "multihead": partial(_rows, Multihead),
    "lstm": partial(_rows, partial(Recurrent, nn.LSTM, num_layers=2, bidirectional=True)),
    "lstm_projected": partial(_rows, partial(Recurrent, nn.LSTM, proj_size=6)),
    "gru": partial(_rows, partial(Recurrent, nn.GRU, bidirectional=True)),
    "rnn": partial(_rows, partial(Recurrent, nn.RNN, num_layers=2, nonlinearity="relu")),
    "cells": partial(_rows, Cells),
    "flattened": partial(_rows, Flattened),
    "unet_nearest": partial(_places, "nearest"),
    "unet_bilinear": partial(_places, "bilinear"),
    "unet_bicubic": partial(_places, "bicubic"),
    "unet_learned": partial(_places, "learned"),
    "mobile": _mobile,
    "shuffled": _shuffled,
    "weight_norm": partial(_weighed, parametrizations.weight_norm),
    "weight_norm_hook": partial(_weighed, nn.utils.weight_norm),
    "spectral_norm": partial(_weighed, parametrizations.spectral_norm),
    "sound": _sound,
    "bags": partial(_tokens, Bags),
    "experts": partial(_rows, Experts, (_WIDTH,)),
}
