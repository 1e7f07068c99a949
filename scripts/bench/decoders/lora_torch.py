"""PyTorch's side of `lora.py`: the same decoder in float32, LoRA on all products, each layer checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Adapted(torch.nn.Module):
    """A frozen dense layer and its low-rank adapter."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.frozen = torch.nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5, requires_grad=False)
        self.a = torch.nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.b = torch.nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Any) -> Any:
        return functional.linear(x, self.frozen) + 2 * functional.linear(functional.linear(x, self.a), self.b)


class Layer(torch.nn.Module):
    """Attention with rotated positions and grouped queries, and a gated feed-forward part."""

    def __init__(self, shape: Mapping[str, int], rank: int) -> None:
        super().__init__()
        width, hidden, self.heads, self.key_heads = (shape[k] for k in ("width", "hidden", "heads", "key_heads"))
        each = width // self.heads * self.key_heads
        self.q, self.o = Adapted(width, width, rank), Adapted(width, width, rank)
        self.k, self.v = Adapted(width, each, rank), Adapted(width, each, rank)
        self.gate, self.up = Adapted(width, hidden, rank), Adapted(width, hidden, rank)
        self.down = Adapted(hidden, width, rank)

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        rows, length, width = x.shape
        h = functional.rms_norm(x, (width,))
        q, k, v = (
            dense(h).view(rows, length, heads, width // self.heads).transpose(1, 2)
            for dense, heads in ((self.q, self.heads), (self.k, self.key_heads), (self.v, self.key_heads))
        )
        q, k = (_rotated(t, cosine, sine) for t in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(rows, length, width))
        h = functional.rms_norm(x, (width,))
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    left, right = x.chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


def step_of(shape: Mapping[str, int], tokens: int, rank: int) -> Callable[[], float]:
    """Return a training step by Adam on one row of tokens, which gives the loss."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, vocabulary = shape["width"], shape["vocabulary"]
    table = torch.randn(vocabulary, width)
    head = torch.randn(vocabulary, width) * width**-0.5
    layers = torch.nn.ModuleList(Layer(shape, rank) for _ in range(shape["layers"]))
    optimizer = torch.optim.Adam([p for p in layers.parameters() if p.requires_grad], 1e-3)
    each = width // shape["heads"]
    angles = torch.arange(tokens)[:, None] * 10_000.0 ** -(torch.arange(0, each, 2) / each)
    cosine, sine = angles.cos(), angles.sin()
    ids = torch.randint(0, vocabulary, (1, tokens + 1))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        x = table[ids[:, :-1]].requires_grad_()
        for layer in layers:
            x = checkpoint(layer, x, cosine, sine, use_reentrant=False)
        logits = functional.linear(functional.rms_norm(x, (width,)), head)
        loss = functional.cross_entropy(logits[0], ids[0, 1:])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
