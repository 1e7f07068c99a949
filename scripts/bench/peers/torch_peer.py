"""PyTorch's step, tuned: channels_last, batch norm in inference mode, only what trains asks for gradients.

Its allocator is the C library's, told by MALLOC_* (see `race.py`) to keep the pages that it has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import task

EPSILON = 1e-5
Weights = Mapping[str, Any]


def prepare(args: argparse.Namespace) -> str:
    """Imports PyTorch."""
    import torch

    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(args.threads)
    return f"torch {torch.__version__}"


def load(job: task.Task, x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> Callable[[], float]:
    """Return the step."""
    import torch
    from measured import LEARNING_RATE

    weights: dict[str, torch.Tensor] = {}
    for name, array in job.weights():
        weights[name] = torch.from_numpy(array.transpose(3, 2, 0, 1) if array.ndim == 4 else array).clone()
        if array.ndim == 4:
            weights[name] = weights[name].contiguous(memory_format=torch.channels_last)
    trained = [weights[name].requires_grad_() for name in job.trained[args.scheme]]
    inputs, target = torch.from_numpy(x), torch.from_numpy(y).long().flatten()
    if inputs.ndim == 4:
        inputs = inputs.permute(0, 3, 1, 2)  # NHWC in memory: this is channels_last

    def loss() -> torch.Tensor:
        logits = _NETS[job.kind](weights, inputs, **job.sizes)
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target)

    def step() -> float:
        value = loss()
        value.backward()
        with torch.no_grad():
            for weight in trained:
                weight.add_(weight.grad, alpha=-LEARNING_RATE)
                weight.grad = None
        return float(value.detach())

    return step


def _mobilenetv2(w: Weights, x: Any, strides: Sequence[int]) -> Any:
    from torch.nn.functional import linear, relu6

    x = relu6(_unit(w, "stem", x, 2), inplace=True)
    for i, stride in enumerate(strides):
        block = f"blocks/{i}"
        y = relu6(_unit(w, f"{block}/expand", x), inplace=True) if f"{block}/expand/w" in w else x
        y = relu6(_unit(w, f"{block}/depthwise", y, stride), inplace=True)
        y = _unit(w, f"{block}/project", y)
        x = x + y if x.shape == y.shape else y
    x = relu6(_unit(w, "last", x), inplace=True)
    return linear(x.mean((2, 3)), w["head/w"].T, w["head/b"])


def _resnet50(w: Weights, x: Any, strides: Sequence[int]) -> Any:
    from torch.nn.functional import linear, max_pool2d, relu

    x = relu(_unit(w, "stem", x, 2), inplace=True)
    x = max_pool2d(x, 3, 2, ceil_mode=True)  # the windows of SAME
    for i, stride in enumerate(strides):
        block = f"blocks/{i}"
        y = relu(_unit(w, f"{block}/reduce", x), inplace=True)
        y = relu(_unit(w, f"{block}/conv", y, stride), inplace=True)
        y = _unit(w, f"{block}/expand", y)
        x = relu(y + (_unit(w, f"{block}/shortcut", x, stride) if f"{block}/shortcut/w" in w else x), inplace=True)
    return linear(x.mean((2, 3)), w["head/w"].T, w["head/b"])


def _unit(w: Weights, name: str, x: Any, stride: int = 1) -> Any:
    """Return a convolution with padding SAME and its batch norm in inference mode."""
    from torch.nn.functional import batch_norm, conv2d, pad

    filters = w[f"{name}/w"]
    k, padding = filters.shape[-1], filters.shape[-1] // 2
    if stride > 1 and k > 1:
        before, after = (k - stride) // 2, k - stride - (k - stride) // 2
        x, padding = pad(x, (before, after, before, after)), 0
    groups = x.shape[1] if filters.shape[1] == 1 else 1
    x = conv2d(x, filters, None, stride, padding, groups=groups)
    gamma, beta, mean, variance = (w[f"{name}/{part}"] for part in ("gamma", "beta", "mean", "var"))
    return batch_norm(x, mean, variance, gamma, beta, training=False, eps=EPSILON)


def _encoder(w: Weights, ids: Any, heads: int) -> Any:
    from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention

    def dense(name: str, x: Any) -> Any:
        return linear(x, w[f"{name}/w"].T, w.get(f"{name}/b"))

    def norm(name: str, x: Any) -> Any:
        return layer_norm(x, x.shape[-1:], w[f"{name}/gamma"], w[f"{name}/beta"], EPSILON)

    x = embedding(ids, w["embeddings/tokens"], sparse=True) + w["embeddings/positions"]
    x = norm("embeddings/norm", x)
    for i in range(_layers(w)):
        layer = f"layers/{i}"
        q, k, v = (_split(dense(f"{layer}/{part}", x), heads) for part in ("q", "k", "v"))
        x = norm(f"{layer}/attention_norm", x + dense(f"{layer}/o", _join(scaled_dot_product_attention(q, k, v))))
        x = norm(f"{layer}/ffn_norm", x + dense(f"{layer}/down", gelu(dense(f"{layer}/up", x))))
    return dense("head", x[:, 0])


def _decoder(w: Weights, ids: Any, heads: int) -> Any:
    from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

    x = embedding(ids, w["tokens"], sparse=True)
    cos, sin = _rotation(x.shape[1], x.shape[2] // heads)
    for i in range(_layers(w)):
        layer = f"layers/{i}"
        y = rms_norm(x, x.shape[-1:], w[f"{layer}/attention_norm"], EPSILON)
        q, k, v = (_split(y @ w[f"{layer}/{part}"], heads) for part in ("q", "k", "v"))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        x = x + _join(scaled_dot_product_attention(q, k, v, is_causal=True)) @ w[f"{layer}/o"]
        y = rms_norm(x, x.shape[-1:], w[f"{layer}/ffn_norm"], EPSILON)
        x = x + (silu(y @ w[f"{layer}/gate"]) * (y @ w[f"{layer}/up"])) @ w[f"{layer}/down"]
    return rms_norm(x, x.shape[-1:], w["norm"], EPSILON) @ w["head"]


def _layers(w: Weights) -> int:
    return 1 + max(int(name.split("/")[1]) for name in w if name.startswith("layers/"))


def _rotation(length: int, width: int) -> tuple[Any, Any]:
    """Cosine and sine, [length, width], for heads that stand before the length."""
    import torch

    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    both = torch.from_numpy(np.concatenate([angles, angles], axis=-1).astype(np.float32))
    return both.cos(), both.sin()


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _split(x: Any, heads: int) -> Any:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(x: Any) -> Any:
    return x.transpose(1, 2).flatten(2)


_NETS = {"mobilenetv2": _mobilenetv2, "resnet50": _resnet50, "encoder": _encoder, "decoder": _decoder}

if __name__ == "__main__":
    task.run("torch", prepare, load)
