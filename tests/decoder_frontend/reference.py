"""A decoder in NumPy, token by token and head by head, as `transformers` writes it for float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]


def logits(architecture: str, entries: Mapping[str, Any], w: Weights, ids: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Logits [length, vocabulary] of one row; tokens of other texts are not looked at."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    gemma, epsilon = architecture == "gemma3", entries["attention.layer_norm_rms_epsilon"]
    heads, key_heads = entries["attention.head_count"], entries["attention.head_count_kv"]
    each = entries.get("attention.key_length", entries["embedding_length"] // heads)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scale = w[f"{name}.weight"] + (1 if gemma else 0)
        return x / np.sqrt((x**2).mean() + epsilon) * scale

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0)

    x = [w["model.embed_tokens.weight"][i] * (np.sqrt(entries["embedding_length"]) if gemma else 1) for i in ids]
    for layer in range(entries["block_count"]):
        at = f"model.layers.{layer}."
        whole = not gemma or (layer + 1) % 6 == 0
        base = entries["rope.freq_base"] if whole else 10_000.0
        keys: list[list[np.ndarray]] = []
        values: list[list[np.ndarray]] = []
        after = []
        for place, state in enumerate(x):
            read = norm(state, f"{at}input_layernorm")
            parts = [
                np.split(dense(read, f"{at}self_attn.{n}_proj"), count)
                for n, count in (("q", heads), ("k", key_heads), ("v", key_heads))
            ]
            if f"{at}self_attn.q_norm.weight" in w:
                parts[0] = [norm(v, f"{at}self_attn.q_norm") for v in parts[0]]
                parts[1] = [norm(v, f"{at}self_attn.k_norm") for v in parts[1]]
            keys.append([rotated(v, place, base) for v in parts[1]])
            values.append(parts[2])
            seen = [
                p
                for p in range(place + 1)
                if texts[p] == texts[place] and (whole or place - p < entries["attention.sliding_window"])
            ]
            mixed = []
            for head in range(heads):
                query, group = rotated(parts[0][head], place, base), head // (heads // key_heads)
                scores = np.array([query @ keys[p][group] for p in seen]) / np.sqrt(each)
                share = np.exp(scores - scores.max())
                mixed.append(sum(s * values[p][group] for s, p in zip(share / share.sum(), seen, strict=True)))
            given = dense(np.concatenate(mixed), f"{at}self_attn.o_proj")
            state = state + (norm(given, f"{at}post_attention_layernorm") if gemma else given)
            read = norm(state, f"{at}{'pre_feedforward' if gemma else 'post_attention'}_layernorm")
            gate = dense(read, f"{at}mlp.gate_proj")
            gate = gelu(gate) if gemma else gate / (1 + np.exp(-gate))
            given = dense(gate * dense(read, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
            after.append(state + (norm(given, f"{at}post_feedforward_layernorm") if gemma else given))
        x = after
    table = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return np.array([table @ norm(state, "model.norm") for state in x])


def rotated(x: np.ndarray, place: int, base: float) -> np.ndarray:
    """A head turned by its place: number i with number i + half."""
    half = len(x) // 2
    angle = place * base ** (-np.arange(half) / half)
    left, right = x[:half], x[half:]
    return np.concatenate([left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle) + left * np.sin(angle)])


def gelu(x: np.ndarray) -> np.ndarray:
    """By tanh."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
