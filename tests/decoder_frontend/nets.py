"""Random decoders of every architecture: configurations as `config.json` has them, weights, folders and rows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

#: What `transformers` takes where a key is absent, of keys that a random configuration may leave out.
ABSENT = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "rms_norm_eps": {"phi3": 1e-5, "olmo2": 1e-5, "": 1e-6},
    "tie_word_embeddings": {"smollm3": True, "gemma": True, "gemma2": True, "gemma3_text": True, "": False},
    "rope_theta": {"smollm3": 2e6, "gemma3_text": 1e6, "": 1e4},
    "attn_logit_softcapping": {"gemma2": 50.0, "": None},
    "final_logit_softcapping": {"gemma2": 30.0, "": None},
}
MODEL_TYPES = (
    "llama",
    "mistral",
    "ministral",
    "qwen2",
    "qwen3",
    "phi3",
    "smollm3",
    "granite",
    "olmo2",
    "gemma",
    "gemma2",
    "gemma3_text",
)
VOCABULARY = 96
CONTEXT = 64


def drawn(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return a random configuration of a `model_type`."""

    def one(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    heads = one(2, 4, 6)
    kv_heads = one(*(n for n in (1, 2, 3, 6) if heads % n == 0))
    head_width = one(8, 12, 16)
    layers = one(1, 2, 3) if kind not in ("gemma3_text", "smollm3", "gemma2") else one(2, 4, 7)
    config: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": VOCABULARY,
        "hidden_size": heads * one(8, 12) if kind != "phi3" else heads * head_width,
        "intermediate_size": one(24, 48),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_width,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": one(1e-6, 1e-5, 1e-3),
        "tie_word_embeddings": one(True, False),
        "rope_theta": one(1e4, 5e5, 1e3),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind in ("granite", "phi3") or (one(True, False) and not kind.startswith(("gemma", "qwen3", "ministral"))):
        del config["head_dim"]  # the width over the heads
        head_width = config["hidden_size"] // heads
    gemma = kind.startswith("gemma")
    config["hidden_activation" if kind in ("gemma2", "gemma3_text") else "hidden_act"] = (
        one("gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu") if gemma else one("silu", "silu", "gelu", "relu")
    )
    if kind in ("llama", "smollm3", "granite"):
        config |= {"attention_bias": one(True, False), "mlp_bias": one(True, False)}
    if kind in ("qwen3", "olmo2", "gemma", "gemma2", "gemma3_text"):
        config["attention_bias"] = one(False, False, True)
    config |= _windows(kind, layers, one)
    if kind == "granite":
        config |= {
            "embedding_multiplier": one(1.0, 12.0),
            "residual_multiplier": one(1.0, 0.22),
            "logits_scaling": one(1.0, 8.0),
            "attention_multiplier": one(1.0, 0.0625, 0.35),
        }
    if kind in ("gemma2", "gemma3_text"):
        config["query_pre_attn_scalar"] = one(head_width, 24, 256)
        config["attn_logit_softcapping"] = one(None, 2.0, 50.0)
        config["final_logit_softcapping"] = one(None, 3.0, 30.0)
        if kind == "gemma3_text":
            config["attn_logit_softcapping"] = None  # which transformers does not read there
    config |= _rotations(kind, head_width, one)
    for key, value in list(config.items()):
        absent = ABSENT.get(key, "")
        usual = absent.get(kind, absent[""]) if isinstance(absent, dict) else absent
        if key in ABSENT and value == usual and one(True, False):
            del config[key]
    return config


def _windows(kind: str, layers: int, one: Any) -> dict[str, Any]:
    listed = [one("full_attention", "sliding_attention") for _ in range(layers)]
    window = one(3, 5, 20)
    if kind in ("mistral", "phi3"):
        return {"sliding_window": one(window, window, None)}
    if kind == "ministral":
        return one({"sliding_window": window}, {"sliding_window": window, "layer_types": listed})
    if kind in ("qwen2", "qwen3"):
        used = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": one(0, 1, 2)}
        return one(used, {"use_sliding_window": False, "sliding_window": 5}, used | {"layer_types": listed})
    if kind == "smollm3":
        used = {"use_sliding_window": one(True, False), "sliding_window": window, "no_rope_layer_interval": one(2, 4)}
        return one(used, used | {"no_rope_layers": [one(0, 1) for _ in range(layers)]})
    if kind == "gemma2":
        return {"sliding_window": window} | one({}, {"layer_types": listed})
    if kind == "gemma3_text":
        return {"sliding_window": window} | one({}, {"layer_types": listed}, {"sliding_window_pattern": one(2, 3)})
    return {}


def _rotations(kind: str, head_width: int, one: Any) -> dict[str, Any]:
    """How rotations are stretched, in the older and the newer spelling."""
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": one(16, 32),
    }
    linear = {one("type", "rope_type"): "linear", "factor": one(2.0, 8.0)}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16} | one(
        {}, {"beta_fast": 4.0, "beta_slow": 0.5}, {"attention_factor": 1.5}, {"mscale": 0.7, "mscale_all_dim": 1.2}
    )
    if kind == "phi3":
        share = one(1.0, 0.5, 0.75) if head_width % 8 == 0 else 1.0
        pairs = int(head_width * share) // 2
        factors = {"short_factor": [1.0 + i / 9 for i in range(pairs)], "long_factor": [2.0 + i for i in range(pairs)]}
        said = one({}, {"rope_scaling": {"type": "longrope", **factors}})
        return (
            said | {"original_max_position_embeddings": one(8, 32)} | one({}, {"partial_rotary_factor": share})
            if (share == 1.0)
            else said | {"original_max_position_embeddings": one(8, 32), "partial_rotary_factor": share}
        )
    if kind == "gemma3_text":
        older = {
            "rope_local_base_freq": one(1e4, 1e3),
            "rope_scaling": one(None, {"rope_type": "linear", "factor": 8.0}),
        }
        newer = {
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e5, "rope_type": "default"}
                | one({}, linear | {"rope_type": "linear"}),
                "sliding_attention": {"rope_theta": one(1e4, 1e3), "rope_type": "default"},
            }
        }
        return one(older, newer)
    stretched = one(None, None, linear, llama3, yarn)
    return {one("rope_scaling", "rope_parameters"): stretched}


def weights(config: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return random weights by name, the same for a name and shape always.

    Args:
        config: of the net.
        shapes: by the names of `transformers`.
    """
    made = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(f"{name} {list(shape)}".encode()))
        array = rng.standard_normal(tuple(shape))
        if name.endswith("norm.weight"):
            array = 0.2 * array + (0 if str(config["model_type"]).startswith("gemma") else 1)
        elif len(shape) == 1:
            array *= 0.3
        else:
            array *= (2 if ".q_proj" in name or ".k_proj" in name else 1) / np.sqrt(shape[-1])
        made[name] = array.astype(np.float32)
    return made


def write_folder(path: Path, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a folder of transformers."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, path / "model.safetensors")


def rows(length: int) -> np.ndarray:
    """Return ids int32 [2, length]."""
    return np.random.default_rng(length).integers(0, VOCABULARY, (2, length)).astype(np.int32)
