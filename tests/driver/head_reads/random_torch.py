"""Random small nets of PyTorch, channels first: what each layer with a kernel reads is seen by a hook."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.driver.head_reads.drawn import CLASSES, Dice, Drawn, Inside

_KERNELS = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.MultiheadAttention, nn.LSTM, nn.GRU)


class Convolutions(nn.Module):
    """A block of pictures or series [rows, channels, positions...]: plain, residual, inverted, or of two branches."""

    def __init__(self, dice: Dice, channels: int, spatial: int) -> None:
        super().__init__()
        conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d))[spatial - 1]
        self.kind = dice.one("plain", "residual", "inverted", "branches", "excited", "grouped")
        self.spatial = spatial
        act = dice.one(nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.Tanh)

        def layer(inputs: int, outputs: int, window: int, **options: Any) -> nn.Module:
            parts = [conv(inputs, outputs, window, padding=window // 2, bias=dice.yes(), **options)]
            parts += [norm(outputs)] if dice.yes() else []
            return nn.Sequential(*parts, act())

        self.channels = outputs = dice.size(2, 6)
        stride = dice.one(1, 1, 2)
        if self.kind == "plain":
            self.a = layer(channels, outputs, 3, stride=stride)
        elif self.kind == "residual":
            self.shortcut = layer(channels, outputs, 1, stride=stride)
            self.a, self.b = layer(channels, outputs, 3, stride=stride), layer(outputs, outputs, 1)
        elif self.kind == "inverted":
            wide = 2 * channels
            self.expand = layer(channels, wide, 1)
            self.depthwise = layer(wide, wide, 3, groups=wide, stride=stride)
            self.project = layer(wide, outputs, 1)
        elif self.kind == "branches":
            self.a, self.b = layer(channels, 2, 1), layer(channels, outputs, 3)
            self.channels = 2 + outputs
        elif self.kind == "excited":
            self.a = layer(channels, outputs, 3)
            self.reduce, self.excite = nn.Linear(outputs, 2), nn.Linear(2, outputs)
        else:
            self.a = layer(channels, 4, 1)
            self.b, self.c = layer(4, 4, 3, groups=2), layer(4, outputs, 1)

    def forward(self, x: Any) -> Any:
        if self.kind == "plain":
            return self.a(x)
        if self.kind == "residual":
            way = self.shortcut(x)
            return way + self.b(self.a(x))
        if self.kind == "inverted":
            return self.project(self.depthwise(self.expand(x)))
        if self.kind == "branches":
            return torch.cat([self.a(x), self.b(x)], 1)
        if self.kind == "excited":
            y = self.a(x)
            s = torch.sigmoid(self.excite(torch.relu(self.reduce(y.flatten(2).mean(2)))))
            return y * s[(..., *[None] * self.spatial)]
        return self.c(self.b(self.a(x)))


class Attention(nn.Module):
    """A block of texts [rows, positions, channels], or with the positions first."""

    def __init__(self, dice: Dice, channels: int, first: bool) -> None:
        super().__init__()
        self.first, self.kind = first, dice.one("by hand", "by hand", "own", "feed")
        self.norm = nn.LayerNorm(channels) if dice.yes() else nn.Identity()
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.up, self.down = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=not first)
        if self.kind != "by hand":
            del self.query, self.key, self.value
        if self.kind != "own":
            del self.attention

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        if self.kind == "own":
            x = x + self.attention(y, y, y, need_weights=False)[0]
        elif self.kind == "by hand":
            q, k, v = self.query(y), self.key(y), self.value(y)
            if self.first:
                q, k, v = (one.transpose(0, 1) for one in (q, k, v))
            mixed = torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v
            x = x + (mixed.transpose(0, 1) if self.first else mixed)
        return x + self.down(torch.tanh(self.up(x)))


class Convolved(nn.Module):
    """A pictures or series net with channels first."""

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        self.spatial = dice.one(1, 2, 2)
        self.shape = (dice.size(1, 4), *(dice.size(4, 8) for _ in range(self.spatial)))
        self.blocks, channels = nn.ModuleList(), self.shape[0]
        for _ in range(dice.size(1, 3)):
            self.blocks.append(Convolutions(dice, channels, self.spatial))
            channels = self.blocks[-1].channels
        self.end = dice.one("mean", "mean", "max", "flat", *(("last", "masked") if self.spatial == 1 else ()))
        self.drop = nn.Dropout(0.2)
        y = self.before_end(torch.zeros(1, *self.shape))
        self.left = y.shape[2:]
        self.hidden = nn.Linear(self.pooled(y, None).shape[1], 5) if dice.yes(0.3) else nn.Identity()
        self.head = nn.Linear(self.hidden(self.pooled(y, None)).shape[1], CLASSES)

    def before_end(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x

    def pooled(self, y: Any, mask: Any) -> Any:
        if self.end == "masked":
            mask = torch.ones(1, 1, y.shape[2]) if mask is None else mask
            return (y * mask).sum(2) / mask.sum(2).clamp(min=1e-9)
        if self.end == "last":
            return y[:, :, -1]
        flat = y.flatten(2)
        return {"mean": flat.mean(2), "max": flat.amax(2), "flat": y.flatten(1)}[self.end]

    def mask_of(self, x: Any) -> Any:
        """By what a position counts: whether the first channel is not far below zero there."""
        return (x[:, :1, :: max(1, x.shape[2] // self.left[0])][:, :, : self.left[0]] > -0.5).to(x.dtype)

    def forward(self, x: Any) -> Any:
        mask = self.mask_of(x) if self.end == "masked" else None
        return self.head(self.hidden(self.drop(self.pooled(self.before_end(x), mask))))


class Text(nn.Module):
    """A text net: of ids or vectors, with the rows or the positions first, with a class token or none."""

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        self.length, channels = dice.size(4, 7), 4
        self.of_ids, self.first = dice.yes(), dice.yes(0.3)
        self.shape = (self.length,) if self.of_ids else (self.length, 3)
        self.embed = nn.Embedding(9, channels) if self.of_ids else nn.Linear(3, channels)
        self.token = nn.Parameter(torch.randn(1, 1, channels)) if dice.yes(0.4) else None
        self.layers = nn.ModuleList(Attention(dice, channels, self.first) for _ in range(dice.size(1, 2)))
        self.end = (
            "first"
            if self.token is not None
            else dice.one("mean", "masked", "masked by product", "masked filled", "last", "flat")
        )
        self.rnn = dice.one(nn.LSTM, nn.GRU)(channels, channels, batch_first=True) if dice.yes(0.2) else None
        self.head = nn.Linear(channels * (self.length if self.end == "flat" else 1), CLASSES)

    def mask_of(self, x: Any) -> Any:
        return ((x if self.of_ids else x[..., 0]) > 0).float()

    def forward(self, x: Any) -> Any:
        y = self.embed(x)
        mask = self.mask_of(x).to(y.dtype)
        if self.token is not None:
            y = torch.cat([self.token.expand(len(x), 1, -1), y], 1)
        y = y.transpose(0, 1) if self.first else y
        for layer in self.layers:
            y = layer(y)
        y = y.transpose(0, 1) if self.first else y
        if self.rnn is not None:
            y = self.rnn(y)[0]
        if self.end == "masked filled":
            y = y.masked_fill(mask[..., None] == 0, 0.0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
        elif self.end == "masked":
            y = (y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
        elif self.end == "masked by product":
            y = (mask[:, None] @ y)[:, 0] / mask.sum(1, keepdim=True).clamp(min=1e-9)
        else:
            y = {"mean": y.mean(1), "first": y[:, 0], "last": y[:, -1], "flat": y.flatten(1)}[self.end]
        return self.head(y)


def _rows_first(module: nn.Module, x: Any, net: nn.Module) -> Any:
    """Return what a layer reads, rows first and channels last."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return x.movedim(1, -1)
    first = isinstance(net, Text) and net.first and x.ndim == 3
    return x.transpose(0, 1) if first and not _in_rows(module, net) else x


def _in_rows(module: nn.Module, net: Any) -> bool:
    return module is net.embed or module is net.head


def watched(net: Any, x: np.ndarray) -> Inside:
    """Return what a net gives, and what its layers read; with derivatives, where these are asked for."""
    reads: dict[str, Any] = {}

    def keep(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, given: Any) -> None:
            reads.setdefault(name, _rows_first(module, given[0], net))

        return hook

    hooks = [
        module.register_forward_pre_hook(keep(name, module))
        for name, module in net.named_modules()
        if isinstance(module, _KERNELS)
    ]
    given = torch.from_numpy(x)
    given = given.to(net.head.weight.dtype) if given.dtype.is_floating_point else given.long()
    output = net(given)
    for hook in hooks:
        hook.remove()
    own, mask = reads.pop("head"), net.mask_of(given) if net.end.startswith("masked") else None
    return Inside(output, own, reads, None if mask is None else mask.reshape(len(x), -1).to(own.dtype))


def draw(seed: int) -> Drawn:
    """Return a random net of PyTorch."""
    dice = Dice(seed)
    torch.manual_seed(seed)
    net = dice.one(Convolved, Convolved, Text)(dice).eval()
    for name, buffer in net.named_buffers():
        if buffer.dtype.is_floating_point:
            buffer.copy_(torch.rand(buffer.shape) + 0.5 if name.endswith("var") else torch.randn(buffer.shape) / 3)
    rng = np.random.default_rng(seed)

    def rows(many: int) -> Any:
        if isinstance(net, Text) and net.of_ids:
            ids = rng.integers(1, 9, (many, net.length))
            for row in ids:
                row[rng.integers(1, net.length + 1) :] = 0
            return ids.astype(np.int32)
        return rng.standard_normal((many, *net.shape)).astype("f")

    def inside(x: np.ndarray) -> Inside:
        with torch.no_grad():
            seen = watched(net, x)
        reads = {name: read.numpy() for name, read in seen.reads.items()}
        return Inside(seen.output.numpy(), seen.own.numpy(), reads, None if seen.mask is None else seen.mask.numpy())

    length = net.left[0] if isinstance(net, Convolved) else net.length
    recurrent = isinstance(net, Text) and net.rnn is not None  # whose last state is of all positions
    token = None if recurrent else {"first": 0, "last": length - 1}.get(net.end)
    given = torch.from_numpy(rows(1))
    kinds = [b.kind for b in (net.blocks if isinstance(net, Convolved) else net.layers)]
    story = f"{type(net).__name__} {net.shape} {kinds} {net.end}"
    story += f" first {net.first} rnn {net.rnn} token {net.token is not None}" if isinstance(net, Text) else ""
    inputs = (given.long() if given.dtype == torch.int32 else given,)
    options = {"inputs": inputs, "loss": "sparse_categorical_crossentropy"}
    positions = length if token is not None or net.end.startswith("masked") else None
    return Drawn(net, rows, inside, token, positions, watched, options, story)
