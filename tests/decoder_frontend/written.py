"""Small GGUF files of random decoders, written by the library `gguf` as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

#: Architectures that it writes; `converted.py` writes all.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
#: A vocabulary of bytes and a few words.
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def metadata(architecture: str, **other: Any) -> dict[str, Any]:
    """Entries of a file, without the architecture in front of their names."""
    return {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10_000.0,
        **({"attention.key_length": 16, "attention.value_length": 16} if architecture in ("qwen3", "gemma3") else {}),
        **({"attention.sliding_window": 5, "block_count": 6} if architecture == "gemma3" else {}),
        **other,
    }


def weights(architecture: str, entries: Mapping[str, Any], rows: int = 96, tied: bool = False) -> dict[str, np.ndarray]:
    """Random weights by the names and in the layout of transformers; Gemma's norms are what is added to 1."""
    rng = np.random.default_rng(0)
    width, hidden = entries["embedding_length"], entries["feed_forward_length"]
    heads, key_heads = entries["attention.head_count"], entries["attention.head_count_kv"]
    each = entries.get("attention.key_length", width // heads)

    def table(outputs: int, inputs: int) -> np.ndarray:
        return (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return ((0 if architecture == "gemma3" else 1) + 0.2 * rng.standard_normal(size)).astype(np.float32)

    made = {"model.embed_tokens.weight": table(rows, width), "model.norm.weight": norm(width)}
    for layer in range(entries["block_count"]):
        own = {
            "input_layernorm.weight": norm(width),
            "self_attn.q_proj.weight": 3 * table(heads * each, width),
            "self_attn.k_proj.weight": 3 * table(key_heads * each, width),
            "self_attn.v_proj.weight": table(key_heads * each, width),
            "self_attn.o_proj.weight": table(width, heads * each),
            "post_attention_layernorm.weight": norm(width),
            "mlp.gate_proj.weight": table(hidden, width),
            "mlp.up_proj.weight": table(hidden, width),
            "mlp.down_proj.weight": table(width, hidden),
        }
        if architecture == "qwen2":
            sizes = {"q": heads, "k": key_heads, "v": key_heads}
            own |= {f"self_attn.{n}_proj.bias": table(1, count * each)[0] for n, count in sizes.items()}
        if architecture in ("qwen3", "gemma3"):
            own |= {"self_attn.q_norm.weight": norm(each), "self_attn.k_norm.weight": norm(each)}
        if architecture == "gemma3":
            own |= {"pre_feedforward_layernorm.weight": norm(width), "post_feedforward_layernorm.weight": norm(width)}
        made |= {f"model.layers.{layer}.{name}": array for name, array in own.items()}
    return made if tied else {**made, "lm_head.weight": table(rows, width)}


def stored(architecture: str, name: str, array: np.ndarray, heads: Mapping[str, int]) -> tuple[str, np.ndarray]:
    """A weight under the name and in the layout of llama.cpp."""
    stem, _, kind = name.rpartition(".")
    if stem.endswith(("norm", "layernorm")) and architecture == "gemma3":
        array = array + 1
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in outside:
        return f"{outside[stem]}.{kind}", array
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    gemma = {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    parts = _PARTS | (gemma if architecture == "gemma3" else {"post_attention_layernorm": "ffn_norm"})
    if architecture == "llama" and part in heads:  # LlamaModel.permute of the converter
        each = heads[part]
        array = (
            array.reshape(each, 2, array.shape[0] // each // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        )
    return f"blk.{layer}.{parts[part]}.{kind}", array


def write(
    path: Path,
    architecture: str = "llama",
    entries: Mapping[str, Any] | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
    kind: Kind = Kind.F32,
    texts: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Write a file, and return the weights that it was made of."""
    entries = metadata(architecture) if entries is None else entries
    rows = len((texts or {}).get("tokenizer.ggml.tokens", range(96)))
    arrays = weights(architecture, entries, rows) if arrays is None else arrays
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in entries.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else add)(f"{architecture}.{key}", value)
    for key, value in (texts or {}).items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else add)(key, value)
    heads = {
        "self_attn.q_proj": entries["attention.head_count"],
        "self_attn.k_proj": entries["attention.head_count_kv"],
    }
    for name, array in arrays.items():
        called, array = stored(architecture, name, array, heads)
        array = np.ascontiguousarray(array)
        if array.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(called, array)
        else:
            writer.add_tensor(called, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dict(arrays)


def write_small_model(path: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write a random decoder that spells letter by letter, knows one word, and has a chat template."""
    words = ["Ġ", "Ċ", *map(chr, range(33, 126)), "zo"]
    texts = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*words, "<|im_start|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * len(words) + [3, 3],
        "tokenizer.ggml.merges": ["z o"],
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}",
        **(more or {}),
    }
    entries = metadata("qwen2", context_length=128, feed_forward_length=512)
    write(path, "qwen2", entries, weights("qwen2", entries, len(words) + 2), texts=texts)
