"""Random layers of PyTorch: modules and functions with options drawn from a seed, and the tensors that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Draw = np.random.Generator
Shape = tuple[int, ...]
#: Layers of a group, which are one build.
LAYERS = 10


class Called(nn.Module):
    """A function of tensors and the options that it was given."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *x: Any) -> Any:
        return self.function(*x, **self.options)

    def extra_repr(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}, {self.options}"


@dataclass(frozen=True)
class Layer:
    """A module, and what it is given."""

    module: nn.Module
    shapes: tuple[Shape, ...]

    def __str__(self) -> str:
        return f"{self.module} of {', '.join(map(str, self.shapes))}"


def _one(rng: Draw, *of: Any) -> Any:
    return of[rng.integers(len(of))]


def _yes(rng: Draw, part: float = 0.5) -> bool:
    return bool(rng.random() < part)


def _each(rng: Draw, spatial: int, *of: int) -> Any:
    """Return a number for all axes, or one for each."""
    return _one(rng, *of) if _yes(rng) else tuple(_one(rng, *of) for _ in range(spatial))


def _picture(rng: Draw, channels: int, spatial: int, least: int = 4) -> Shape:
    sizes = tuple(int(n) for n in rng.integers(least, least + 4, spatial))
    return (*(() if _yes(rng, 0.1) else (2,)), channels, *sizes)


def convolution(rng: Draw) -> Layer:
    """Draw a convolution."""
    spatial, groups = _one(rng, 1, 2, 2, 3), _one(rng, 1, 1, 2, 4)
    same = _yes(rng, 0.2)
    module = getattr(nn, f"Conv{spatial}d")(
        4,
        4 * _one(rng, 1, 2),
        _each(rng, spatial, 1, 2, 3),
        stride=1 if same else _each(rng, spatial, 1, 2),
        padding="same" if same else _each(rng, spatial, 0, 1),
        dilation=_each(rng, spatial, 1, 2),
        groups=groups,
        bias=_yes(rng),
        padding_mode=_one(rng, "zeros", "zeros", "reflect", "replicate", "circular"),
    )
    return Layer(module, (_picture(rng, 4, spatial, 5),))


def transposed(rng: Draw) -> Layer:
    """Draw a transposed convolution."""
    spatial = _one(rng, 1, 2, 2, 3)
    stride = _each(rng, spatial, 1, 2, 3)
    module = getattr(nn, f"ConvTranspose{spatial}d")(
        4,
        4,
        _each(rng, spatial, 1, 2, 3),
        stride=stride,
        padding=_each(rng, spatial, 0, 1),
        output_padding=_each(rng, spatial, 0, 1),
        dilation=_each(rng, spatial, 1, 2),
        groups=_one(rng, 1, 2, 4),
        bias=_yes(rng),
    )
    return Layer(module, (_picture(rng, 4, spatial),))


def pooling(rng: Draw) -> Layer:
    """Draw pooling by windows."""
    spatial, window = _one(rng, 1, 2, 2, 3), _one(rng, 2, 3)
    options: dict[str, Any] = {"stride": _one(rng, None, 1, 2, 3), "ceil_mode": _yes(rng)}
    kind = _one(rng, "Max", "Avg", "LP")
    if kind == "LP":
        module: nn.Module = getattr(nn, f"LPPool{spatial}d")(_one(rng, 1, 2, 3), window, **options)
    else:
        options["padding"] = _one(rng, 0, 1)
        if kind == "Max":
            options["dilation"] = _one(rng, 1, 2)
        else:
            options["count_include_pad"] = _yes(rng)
            if spatial > 1 and _yes(rng, 0.3):
                options["divisor_override"] = 3
        module = getattr(nn, f"{kind}Pool{spatial}d")(window, **options)
    return Layer(module, (_picture(rng, 3, spatial),))


def adaptive(rng: Draw) -> Layer:
    """Draw pooling to a size."""
    spatial, kind = _one(rng, 1, 2, 2, 3), _one(rng, "Avg", "Max")
    size = (
        _one(rng, 1, 2, 3, 5) if spatial == 1 or _yes(rng) else tuple(_one(rng, 1, 2, 3, None) for _ in range(spatial))
    )
    return Layer(getattr(nn, f"Adaptive{kind}Pool{spatial}d")(size), (_picture(rng, 3, spatial),))


def resampling(rng: Draw) -> Layer:
    """Draw a resampling of pictures."""
    spatial = _one(rng, 1, 2, 2, 3)
    modes = ["nearest", "nearest-exact", {1: "linear", 2: "bilinear", 3: "trilinear"}[spatial], "area"]
    mode = _one(rng, *modes, *(["bicubic"] if spatial == 2 else []))
    options: dict[str, Any] = {"mode": mode}
    if _yes(rng):
        options["size"] = tuple(int(n) for n in rng.integers(2, 11, spatial))
    else:
        options["scale_factor"] = _one(rng, 2.0, 0.5, 1.5, 1.7, (2.0, 0.7, 1.3)[:spatial])
        # PyTorch's derivative of volumes of nearest ones is not that of what it computes: it takes other places.
        exact = spatial == 3 and mode.startswith("nearest")
        options["recompute_scale_factor"] = True if exact else _one(rng, None, True, False)
    if mode.endswith(("linear", "cubic")):
        options["align_corners"] = _yes(rng)
        if spatial == 2 and _yes(rng, 0.2):
            options["antialias"] = True
    return Layer(Called(functional.interpolate, **options), ((2, 2, *(int(n) for n in rng.integers(3, 8, spatial))),))


def padding(rng: Draw) -> Layer:
    """Draw what stands around a tensor."""
    mode, spatial = _one(rng, "constant", "constant", "reflect", "replicate", "circular"), _one(rng, 1, 2, 3)
    least = -1 if mode == "constant" else 0
    pads = tuple(int(n) for n in rng.integers(least, 3, 2 * spatial))
    more = {"value": float(rng.standard_normal())} if mode == "constant" and _yes(rng) else {}
    return Layer(Called(functional.pad, pad=pads, mode=mode, **more), (_picture(rng, 2, spatial),))


class Recurrent(nn.Module):
    """A recurrent layer: its outputs and last states, flat."""

    def __init__(self, cells: nn.Module, projected: bool = False) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: Any, *state: Any) -> Any:
        given = () if not state else (state[0] if len(state) == 1 else state,)
        y, last = self.cells(x, *given)
        return torch.cat([part.reshape(-1) for part in (y, *(last if isinstance(last, tuple) else (last,)))])


def recurrent(rng: Draw) -> Layer:
    """Draw a recurrent layer, with or without a state of its own."""
    kind, layers, both = _one(rng, nn.LSTM, nn.GRU, nn.RNN), _one(rng, 1, 1, 2), _yes(rng, 0.4)
    first, alone, size = _yes(rng), _yes(rng, 0.2), 4
    more: dict[str, Any] = {"nonlinearity": _one(rng, "tanh", "relu")} if kind is nn.RNN else {}
    projected = 3 if kind is nn.LSTM and _yes(rng, 0.3) else 0
    if projected:
        more["proj_size"] = projected
    cells = kind(3, size, layers, bias=_yes(rng, 0.7), batch_first=first, bidirectional=both, **more)
    rows, steps = 2, int(rng.integers(2, 5))
    shape: Shape = (steps, 3) if alone else ((rows, steps, 3) if first else (steps, rows, 3))
    states: list[Shape] = []
    if _yes(rng, 0.4):
        lead: Shape = (layers * (1 + both), *(() if alone else (rows,)))
        states = [(*lead, projected or size), *([(*lead, size)] if kind is nn.LSTM else [])]
    return Layer(Recurrent(cells), (shape, *states))


class Cell(nn.Module):
    """A cell that is called step by step, as people write loops."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any) -> Any:
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


def cell(rng: Draw) -> Layer:
    """Draw a recurrent cell."""
    kind = _one(rng, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    more = {"nonlinearity": _one(rng, "tanh", "relu")} if kind is nn.RNNCell else {}
    return Layer(Cell(kind(3, 4, bias=_yes(rng, 0.7), **more)), ((2, 3, 3),))


def normalization(rng: Draw) -> Layer:
    """Draw a normalization that computes with its input alone, or with numbers that it keeps."""
    spatial = _one(rng, 1, 2, 3)
    kind = _one(rng, "group", "instance", "layer", "rms", "response", "batch")
    affine, picture = _yes(rng), (2, 4, *(int(n) for n in rng.integers(2, 5, spatial)))
    if kind == "group":
        module: nn.Module = nn.GroupNorm(_one(rng, 1, 2, 4), 4, affine=affine, eps=_one(rng, 1e-5, 1e-2))
    elif kind == "instance":
        module = getattr(nn, f"InstanceNorm{spatial}d")(4, affine=affine)
    elif kind == "layer":
        axes = int(rng.integers(1, len(picture)))
        module = nn.LayerNorm(picture[-axes:], elementwise_affine=affine, bias=_yes(rng))
    elif kind == "rms":
        module = nn.RMSNorm(picture[-1:], eps=_one(rng, None, 1e-3), elementwise_affine=affine)
    elif kind == "response":
        module = nn.LocalResponseNorm(_one(rng, 2, 3, 5), alpha=0.1, beta=_one(rng, 0.75, 0.5), k=_one(rng, 1.0, 2.0))
    else:
        module = getattr(nn, f"BatchNorm{spatial}d")(4, affine=affine, track_running_stats=_yes(rng, 0.8))
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.from_numpy(rng.random(buffer.shape).astype(np.float32)) + (name == "running_var"))
    return Layer(module, (picture,))


class Words(nn.Module):
    """An embedding of words that are a part of the layer."""

    def __init__(self, table: nn.Module, words: Any, *more: Any) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("words", words)
        self.more = more

    def forward(self, factor: Any) -> Any:
        return self.table(self.words, *self.more) * factor


def embedding(rng: Draw) -> Layer:
    """Draw an embedding, or a bag of them."""
    words = torch.from_numpy(rng.integers(0, 6, (3, 4)))
    empty = _one(rng, None, None, int(rng.integers(6)), -1)
    if _yes(rng):
        return Layer(Words(nn.Embedding(6, 4, padding_idx=empty), words), ((4,),))
    bag = nn.EmbeddingBag(6, 4, mode=_one(rng, "sum", "mean", "max"), padding_idx=empty)
    return Layer(Words(bag, words), ((4,),))


class Attention(nn.Module):
    """Attention of several heads with all its options."""

    def __init__(self, attention: nn.MultiheadAttention, named: bool, **given: Any) -> None:
        super().__init__()
        self.attention, self.named, self.given = attention, named, given

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        y, weights = self.attention(q, k, v, need_weights=self.named, **self.given)
        return y.reshape(-1) if weights is None else torch.cat([y.reshape(-1), weights.reshape(-1)])


def attention(rng: Draw) -> Layer:
    """Draw attention of several heads."""
    first, sizes = _yes(rng, 0.7), _yes(rng, 0.3)
    more = {"kdim": 3, "vdim": 5} if sizes else {}
    made = nn.MultiheadAttention(
        4,
        _one(rng, 1, 2),
        bias=_yes(rng, 0.7),
        add_bias_kv=_yes(rng, 0.2),
        add_zero_attn=_yes(rng, 0.2),
        batch_first=first,
        **more,
    )
    rows, queries, keys = 2, 3, int(rng.integers(2, 5))
    given: dict[str, Any] = {"average_attn_weights": _yes(rng)}
    if _yes(rng, 0.3):
        given["attn_mask"] = torch.from_numpy(rng.random((queries, keys)) < 0.4)
        given["attn_mask"][:, 0] = False
    if _yes(rng, 0.3):
        given["key_padding_mask"] = torch.from_numpy(rng.random((rows, keys)) < 0.4)
        given["key_padding_mask"][:, 0] = False
    widths = (4, 3, 5) if sizes else (4, 4, 4)
    counts = (queries, keys, keys)
    shapes = tuple((rows, n, w) if first else (n, rows, w) for n, w in zip(counts, widths, strict=True))
    return Layer(Attention(made, _yes(rng), **given), shapes)


def activation(rng: Draw) -> Layer:
    """Draw an activation, its numbers other than they are at first."""
    module = _one(
        rng,
        nn.ELU(_one(rng, 1.0, 0.5)),
        nn.CELU(_one(rng, 1.0, 0.5)),
        nn.SELU(),
        nn.GELU(_one(rng, "none", "tanh")),
        nn.Hardtanh(-0.5, 0.8),
        nn.Hardsigmoid(),
        nn.Hardshrink(0.4),
        nn.Softshrink(0.4),
        nn.Tanhshrink(),
        nn.LeakyReLU(_one(rng, 0.01, 0.3)),
        nn.PReLU(_one(rng, 1, 3)),
        nn.Softplus(_one(rng, 1.0, 3.0), _one(rng, 20.0, 1.0)),
        nn.Softsign(),
        nn.LogSigmoid(),
        nn.Threshold(0.1, 2.0),
        nn.RReLU(0.1, 0.3),
        nn.Softmax(_one(rng, 1, -1)),
        nn.Softmax2d(),
        nn.LogSoftmax(1),
        nn.GLU(_one(rng, 2, -1)),
        nn.Mish(),
        nn.SiLU(),
        nn.Hardswish(),
        nn.ReLU6(),
    )
    return Layer(module, ((2, 3, 4, 6),))


def rearranged(rng: Draw) -> Layer:
    """Draw a layer that moves numbers."""
    spatial = tuple(int(n) for n in rng.integers(1, 3, 2))
    kind = _one(
        rng, "unfold", "fold", "shuffle", "unshuffle", "channels", "unflatten", "bilinear", "distance", "cosine"
    )
    if kind in ("unfold", "fold"):
        options = {
            "kernel_size": _each(rng, 2, 1, 2, 3),
            "dilation": _each(rng, 2, 1, 2),
            "padding": _each(rng, 2, 0, 1),
            "stride": _each(rng, 2, 1, 2),
        }
        picture = (2, 2, *(int(n) for n in rng.integers(5, 8, 2)))
        if kind == "unfold":
            return Layer(nn.Unfold(**options), (picture,))
        shape = functional.unfold(torch.zeros(picture), **options).shape
        return Layer(nn.Fold(picture[2:], **options), (tuple(shape),))
    made: dict[str, tuple[Callable[[], nn.Module], tuple[Shape, ...]]] = {
        "shuffle": (lambda: nn.PixelShuffle(2), ((2, 8, *spatial),)),
        "unshuffle": (lambda: nn.PixelUnshuffle(2), ((2, 3, 4, 6),)),
        "channels": (lambda: nn.ChannelShuffle(_one(rng, 2, 3)), ((2, 6, *spatial),)),
        "unflatten": (lambda: nn.Unflatten(1, (2, 3)), ((2, 6, *spatial),)),
        "bilinear": (lambda: nn.Bilinear(3, 4, 2, bias=_yes(rng)), ((5, 3), (5, 4))),
        "distance": (lambda: nn.PairwiseDistance(_one(rng, 1.0, 2.0, 3.0), keepdim=_yes(rng)), ((5, 3), (5, 3))),
        "cosine": (lambda: nn.CosineSimilarity(_one(rng, 1, 2)), ((2, 3, 4), (2, 3, 4))),
    }
    module, shapes = made[kind]
    return Layer(module(), shapes)


KINDS = (
    *(convolution, transposed, pooling, adaptive, resampling, padding, recurrent, cell, normalization, embedding),
    *(attention, activation, rearranged),
)


def draw(seed: int) -> list[Layer]:
    """Return the layers of a group: options that PyTorch itself refuses are drawn again."""
    rng, layers = np.random.default_rng(seed), []
    torch.manual_seed(seed)
    while len(layers) < LAYERS:
        try:
            layer = _one(rng, *KINDS)(rng)
            layer.module.eval()
            made = layer.module(*(torch.randn(shape) for shape in layer.shapes))
            if made.numel() and made.isfinite().all():  # roots of pooled negative numbers are none
                layers.append(layer)
        except (RuntimeError, ValueError, AssertionError, NotImplementedError, TypeError):
            continue
    return layers
