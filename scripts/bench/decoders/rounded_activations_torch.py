"""PyTorch's side of `rounded_activations.py`: a Qwen2 in float32 with the numbers that int4 stands for, and LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.nn import functional

from converter.frontends.decoder import Model
from converter.frontends.decoder.configuration import Configuration
from converter.ir.scales import int4_rows

#: Alpha over rank.
SCALE = 2.0


def trainer(
    model: Model, adapters: Mapping[str, np.ndarray], rate: float
) -> tuple[Callable[[np.ndarray], float], Callable[[np.ndarray], float]]:
    """Return functions of ids [rows, tokens + 1]: the loss, and a step of Adam, which gives the loss before it."""
    torch.set_num_threads(1)
    net = _Net(model, adapters)
    optimizer = torch.optim.Adam(list(net.adapters.values()), rate)

    def loss(ids: np.ndarray) -> float:
        with torch.no_grad():
            return float(np.mean([float(net.loss(torch.from_numpy(row[None]).long())) for row in ids]))

    def step(ids: np.ndarray) -> float:
        optimizer.zero_grad(set_to_none=True)
        found = net.loss(torch.from_numpy(ids).long())
        found.backward()
        optimizer.step()
        return float(found.detach())

    return loss, step


class _Net:
    """Qwen2 of one row of tokens."""

    def __init__(self, model: Model, adapters: Mapping[str, np.ndarray]) -> None:
        self._c: Configuration = model.configuration
        self._weights = {name: _dequantised(stored) for name, stored in model.parameters().items()}
        self.adapters = {name: torch.from_numpy(a.copy()).requires_grad_() for name, a in adapters.items()}

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of ids [1, tokens + 1]."""
        x = self._weights["model.embed_tokens.weight"][ids[0, :-1]]
        rope = self._c.ropes[0]
        assert rope is not None
        angles = torch.arange(len(x))[:, None] * torch.tensor(rope.frequencies)
        for layer in range(self._c.layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(prefix, x, (angles.cos(), angles.sin()))
            h = self._norm(f"{prefix}.post_attention_layernorm", x)
            gate, up = (self._dense(f"{prefix}.mlp.{name}_proj", h) for name in ("gate", "up"))
            x = x + self._dense(f"{prefix}.mlp.down_proj", functional.silu(gate) * up)
        head = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        return functional.cross_entropy(functional.linear(self._norm("model.norm", x), head), ids[0, 1:])

    def _attention(self, prefix: str, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        h = self._norm(f"{prefix}.input_layernorm", x)
        counts = {"q": self._c.heads, "k": self._c.kv_heads, "v": self._c.kv_heads}
        q, k, v = (
            self._dense(f"{prefix}.self_attn.{name}_proj", h).view(len(x), count, -1).transpose(0, 1)
            for name, count in counts.items()
        )
        q, k = (_rotated(t, *turns) for t in (q, k))
        mixed = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
        return self._dense(f"{prefix}.self_attn.o_proj", mixed[0].transpose(0, 1).reshape(len(x), -1))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self._c.epsilon)

    def _dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return the product with a matrix [outputs, inputs] and its adapter, and the bias if there is one."""
        weight = self._weights[f"{name}.weight"]
        a, b = (self.adapters[f"{name}.weight/lora_{which}"] for which in "ab")
        first, second = (a, b) if a.shape[0] == weight.shape[1] else (b.T, a.T)
        return functional.linear(x, weight, self._weights.get(f"{name}.bias")) + SCALE * (x @ first) @ second


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


def _dequantised(stored: object) -> torch.Tensor:
    """Return a weight as float32, of a matrix the numbers that `frozen="int4"` stands for."""
    array = np.asarray(stored, np.float32)
    if array.ndim != 2:
        return torch.from_numpy(array.copy())
    integers, scales = int4_rows(array)
    return torch.from_numpy(integers.astype(np.float32) * scales[:, None])
