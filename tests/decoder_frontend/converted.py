"""GGUF files of random decoders as llama.cpp's converter makes them of a folder of transformers.

Written by the conventions of its `convert_hf_to_gguf.py` alone: no table of our front end is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_NAMED = {"mistral": "llama", "gemma3_text": "gemma3"}


#: Kinds that llama.cpp's converter does not know.
WITHOUT = ("ministral",)


def cannot(config: Mapping[str, Any]) -> bool:
    """Return whether GGUF has no way to say what a configuration says."""
    kind, rope = config["model_type"], config.get("rope_scaling") or config.get("rope_parameters") or {}
    usual = ("gelu_pytorch_tanh",) if kind.startswith("gemma") else ("silu",)
    return (
        config.get("hidden_act", config.get("hidden_activation", usual[0])) not in usual
        or kind in WITHOUT
        or (kind in ("qwen2", "qwen3") and bool(config.get("use_sliding_window")))
        or (kind == "smollm3" and (config.get("use_sliding_window") or config["no_rope_layer_interval"] != 4))
        or "no_rope_layers" in config
        or "layer_types" in config
        or "attention_factor" in rope
        or "mscale" in rope
        or (rope.get("rope_type") == "llama3" and kind not in ("llama", "smollm3", "granite", "mistral"))
        or (kind.startswith("gemma") and kind != "gemma3_text" and bool(rope))
        or (kind in ("gemma", "gemma2") and config.get("rope_theta", 1e4) != 1e4)  # which it does not write
        or (kind == "gemma2" and config["query_pre_attn_scalar"] != config["head_dim"])
        or (kind == "gemma3_text" and config["query_pre_attn_scalar"] != config["head_dim"])
        or (kind.startswith("gemma") and (not config.get("tie_word_embeddings", True) or config.get("attention_bias")))
    )


def write(
    path: Path,
    config: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    kind: Kind = Kind.F32,
    words: Sequence[str] = (),
) -> None:
    """Write the file of a configuration and weights of transformers, with a vocabulary where words are given."""
    name = _NAMED.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, name)
    if words:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(list(words))
        writer.add_token_merges([f"{words[0]} {words[1]}"])
    heads = config["num_attention_heads"]
    each = config.get("head_dim") or config["hidden_size"] // heads
    tensors = {_called(name, config): array for name, array in arrays.items()}
    tensors |= _entries(writer, name, config, each)
    pairs = name in ("llama", "smollm3", "granite")
    for called, array in tensors.items():
        if pairs and (".attn_q." in called or ".attn_k." in called):
            groups = heads if ".attn_q." in called else config["num_key_value_heads"]
            halves = array.reshape(groups, 2, array.shape[0] // groups // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        if name.startswith("gemma") and called.endswith("norm.weight"):
            array = array + 1
        array = np.ascontiguousarray(array, np.float32)
        if array.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(called, array)
        else:
            writer.add_tensor(called, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _called(name: str, config: Mapping[str, Any]) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    around = config["model_type"] in ("gemma2", "gemma3_text", "olmo2")
    if part == "post_attention_layernorm" and around:
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _entries(writer: gguf.GGUFWriter, name: str, config: Mapping[str, Any], each: int) -> dict[str, np.ndarray]:
    """Add the metadata, and return the tensors that tell of rotations."""
    usual = {"gemma3": 1e6, "smollm3": 2e6}.get(name, 1e4)
    parameters = dict(config.get("rope_parameters") or {})
    full = parameters.get("full_attention", parameters)
    rope = full | dict(config.get("rope_scaling") or {})
    base = rope.get("rope_theta", config.get("rope_theta", usual))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-5 if name in ("phi3", "olmo2") else 1e-6))
    writer.add_file_type(0)
    if name not in ("gemma", "gemma2"):
        writer.add_rope_freq_base(base)
    if "head_dim" in config:
        writer.add_key_length(each)
        writer.add_value_length(each)
    if name in ("llama", "smollm3", "granite"):
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(each)
    if name != "gemma2" and config.get("sliding_window") and not name.startswith(("qwen", "smollm3")):
        writer.add_sliding_window(config["sliding_window"])
    if name == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.get("attn_logit_softcapping", 50.0) or 0.0)
        writer.add_final_logit_softcapping(config.get("final_logit_softcapping", 30.0) or 0.0)
        writer.add_sliding_window(config["sliding_window"])
    if name == "gemma3":
        if cap := config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(cap)
        if (every := config.get("sliding_window_pattern")) is not None:
            writer.add_uint32("gemma3.attention.sliding_window_pattern", every)
        local = parameters.get("sliding_attention", {}).get("rope_theta", config.get("rope_local_base_freq", 1e4))
        writer.add_float32("gemma3.rope.freq_base_swa", local)
    return _rotations(writer, name, config, rope, base, each)


def _rotations(
    writer: gguf.GGUFWriter, name: str, config: Mapping[str, Any], rope: dict[str, Any], base: float, each: int
) -> dict[str, np.ndarray]:
    kind, context = rope.get("rope_type", rope.get("type", "default")), config["max_position_embeddings"]
    if name == "phi3":
        original = config["original_max_position_embeddings"]
        share = config.get("partial_rotary_factor", 1.0)
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_dimension_count(int(share * each))
        if "long_factor" not in rope:
            return {}
        scale = context / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
        return {f"rope_factors_{n}.weight": np.array(rope[f"{n}_factor"], np.float32) for n in ("long", "short")}
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if kind != "llama3":
        return {}
    factors = []
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    for frequency in 1 / (base ** (np.arange(0, each, 2) / each)):
        length = 2 * math.pi / frequency
        smooth = (rope["original_max_position_embeddings"] / length - low) / (high - low)
        factors.append(1 / ((1 - min(max(smooth, 0), 1)) / rope["factor"] + min(max(smooth, 0), 1)))
    return {"rope_freqs.weight": np.array(factors, np.float32)}
