"""Configurations from `config.json`, with the defaults and the older spellings of `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.frontends.decoder import rope
from converter.frontends.decoder.architectures import (
    ARCHITECTURES,
    ATTENTION_BIASES,
    BY_MODEL_TYPE,
    MLP_BIASES,
    Architecture,
)
from converter.frontends.decoder.configuration import MOST_LAYERS, Configuration, Scales, check_heads
from converter.frontends.decoder.keys import OTHERWISE, Keys, damaged, not_computed, numbers
from converter.support.errors import UsageError

#: Activations of a gate by the names of `transformers`.
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
#: Entries that say nothing of what a net computes.
_HARMLESS = (
    "_name_or_path _attn_implementation attn_implementation architectures auto_map bos_token_id cache_implementation "
    "decoder_start_token_id dtype eos_token_id finetuned_from id2label initializer_range is_decoder is_encoder_decoder "
    "is_llama_config keys_to_ignore_at_inference label2id model_type modules_to_save output_attentions "
    "output_hidden_states pad_token_id pretraining_tp problem_type return_dict return_dict_in_generate sep_token_id "
    "task_specific_params tokenizer_class torch_dtype transformers_version transformers.js_config unsloth_fixed "
    "unsloth_version use_cache chunk_size_feed_forward torchscript use_bfloat16 finetuning_task prefix "
    "tie_encoder_decoder suppress_tokens begin_suppress_tokens exponential_decay_length_penalty forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values tf_legacy_loss pruned_heads "
    # of older releases, which kept the settings of `generate` here
    "bad_words_ids diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size length_penalty max_length "
    "min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores "
    "repetition_penalty temperature top_k top_p typical_p"
)
#: Entries of a model of texts and images beside its text part.
_OF_IMAGES = (
    "text_config",
    "vision_config",
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "tie_word_embeddings",
)
#: Entries with the values by which nothing is computed that is not computed anyway.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
    "partial_rotary_factor": (1, 1.0),
    "rope_interleaved": (False,),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "use_mrope": (False,),
    "use_sliding_window": (False,),
    "clip_qkv": (),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "quantization_config": (),
    "sliding_window": (),
}
#: Entries of dropout, which is of training alone.
DROPOUTS = ("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout", "attn_pdrop")
#: Ways to stretch rotations that are computed.
_STRETCHED = ("default", "linear", "llama3", "yarn", "longrope")


def configuration_of(config: Any, place: Path) -> tuple[Configuration, Mapping[str, float]]:
    """Return the configuration that a `config.json` tells, and its dropouts by key, where they are above 0.

    Args:
        config: its contents.
        place: of the file, for errors.

    Raises:
        UsageError: the architecture is not known, an entry is missing or damaged, or asks for what is not computed.
    """
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind == "gemma3" and isinstance(config.get("text_config"), dict):
        outer, config = config, {"model_type": "gemma3_text"} | config["text_config"]
        Keys(outer, place).refuse_others((*_HARMLESS.split(), *_OF_IMAGES))
        config |= {key: outer[key] for key in ("tie_word_embeddings",) if key in outer}
        config["final_logit_softcapping"] = None  # which transformers does not compute in a model of images
        kind = config["model_type"]
    row = BY_MODEL_TYPE.get(kind) if isinstance(kind, str) else None
    if row is None:
        raise UsageError(
            f"{place} holds a model of the architecture {kind!r}; decoders are read of {', '.join(ARCHITECTURES)}. "
            f"For another, {OTHERWISE}",
            page="language-models",
        )
    keys = Keys(config, place, row.defaults)
    c = _read(row, keys)
    dropouts = {key: keys.number(key, least=-1.0) for key in DROPOUTS if key in keys}
    for key, computed in _NEUTRAL.items():
        if key not in row.defaults:
            keys.only(key, *computed)
    keys.refuse_others(_HARMLESS.split())
    return c, {key: share for key, share in dropouts.items() if share > 0}


def _read(row: Architecture, keys: Keys) -> Configuration:
    layers = keys.whole("num_hidden_layers", most=MOST_LAYERS)
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    kv_heads = keys.whole("num_key_value_heads", heads)
    if width % heads and "head_dim" not in keys and row.defaults["head_dim"] is None:
        raise damaged(keys.place, f"hidden_size {width:,} is no multiple of num_attention_heads {heads}")
    head_width = keys.whole("head_dim", max(width // heads, 1))
    check_heads(heads, kv_heads, head_width, keys.place)
    named = "hidden_activation" if "hidden_activation" in row.defaults else "hidden_act"
    for other in {"hidden_act", "hidden_activation"} - {named}:  # which transformers does not read
        keys.value(other)
    activation = keys.value(named)
    if row.name == "gemma" and activation == "gelu":  # as its first files call the other
        activation = "gelu_pytorch_tanh"
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise not_computed(keys.place, f"the activation {activation!r}")
    biases = set(row.biases)
    biases |= set(ATTENTION_BIASES) if "attention_bias" in row.defaults and keys.flag("attention_bias") else set()
    biases |= set(MLP_BIASES) if "mlp_bias" in row.defaults and keys.flag("mlp_bias") else set()
    rotated = _rotated(row, keys, layers)
    windows = _windows(row, keys, rotated)
    return Configuration(
        row,
        width,
        keys.whole("intermediate_size"),
        heads,
        kv_heads,
        head_width,
        keys.whole("vocab_size"),
        keys.number("rms_norm_eps"),
        keys.whole("max_position_embeddings", most=1 << 40),
        _ACTIVATIONS[activation],
        _ropes(row, keys, head_width, windows, rotated),
        windows,
        frozenset(biases),
        keys.flag("tie_word_embeddings"),
        _scales(row, keys, head_width),
    )


def _scales(row: Architecture, keys: Keys, head_width: int) -> Scales:
    """Return what the row's keys multiply, divide and cap."""
    reads = row.defaults

    def of(key: str) -> float:
        return keys.number(key) if key in reads else 1.0

    scores = float(np.sqrt(head_width))
    if "query_pre_attn_scalar" in reads:
        scores = float(np.sqrt(keys.number("query_pre_attn_scalar")))
    if "attention_multiplier" in reads:
        scores = 1 / keys.number("attention_multiplier")
    caps = [
        keys.optional(key) if key in reads else None for key in ("attn_logit_softcapping", "final_logit_softcapping")
    ]
    return Scales(scores, of("embedding_multiplier"), of("residual_multiplier"), of("logits_scaling"), *caps)


def _rotated(row: Architecture, keys: Keys, layers: int) -> list[bool]:
    """Return for each layer whether it rotates."""
    if "no_rope_layers" not in row.defaults:
        return [True] * layers
    every, said = keys.whole("no_rope_layer_interval"), keys.value("no_rope_layers")
    if said is None:
        return [(layer + 1) % every != 0 for layer in range(layers)]
    if not isinstance(said, list) or len(said) < layers or any(each not in (0, 1) for each in said):
        raise damaged(keys.place, f"no_rope_layers is no list of 0 or 1 for each of {layers} layers")
    return [bool(each) for each in said[:layers]]


def _windows(row: Architecture, keys: Keys, rotated: list[bool]) -> tuple[int | None, ...]:
    """Return on how many tokens each layer looks back; None: on all."""
    layers = len(rotated)
    if not row.windows:
        return (None,) * layers
    used = keys.flag("use_sliding_window") if "use_sliding_window" in row.defaults else True
    window = keys.whole("sliding_window") if keys.value("sliding_window") is not None else None
    window = window if used else None
    if "max_window_layers" in row.defaults:
        first = keys.value("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise damaged(keys.place, f"max_window_layers is {first!r}, not a number of layers")
    else:
        first = 0
        keys.value("max_window_layers")
    every = keys.whole("sliding_window_pattern") if "sliding_window_pattern" in row.defaults else row.window_every
    keys.value("_sliding_window_pattern")
    slides = {
        "all": [True] * layers,
        "every": [(layer + 1) % max(every, 1) != 0 for layer in range(layers)],
        "after": [layer >= first for layer in range(layers)],
        "unrotated": [not each for each in rotated],
    }[row.windows]
    if (said := keys.value("layer_types")) is not None:
        slides = _said_of_layers(said, slides, "layer_types" in row.defaults, window, keys)
    elif window is None and row.windows == "every" and any(slides):
        raise damaged(keys.place, "it has layers of a sliding window, and sliding_window is null")
    return tuple(window if each else None for each in slides)


def _said_of_layers(said: Any, usual: list[bool], read: bool, window: int | None, keys: Keys) -> list[bool]:
    """Return which layers slide by `layer_types`.

    Raises:
        UsageError: it is no list of a word for each layer, or says what `transformers` does not read of it.
    """
    words = ("full_attention", "sliding_attention")
    if not isinstance(said, list) or len(said) != len(usual) or not all(isinstance(each, str) for each in said):
        raise damaged(keys.place, f"layer_types is no list of a word for each of {len(usual)} layers")
    if other := [each for each in said if each not in words]:
        raise not_computed(keys.place, f"layers of {other[0]}")
    slides = [each == words[1] for each in said]
    if window is None and any(slides):
        raise damaged(keys.place, "layer_types has layers of a sliding window, and there is no window")
    if not read and slides != [each and window is not None for each in usual]:
        raise not_computed(keys.place, "other layer_types than transformers has for this architecture")
    return slides


def _ropes(
    row: Architecture, keys: Keys, head_width: int, windows: tuple[int | None, ...], rotated: list[bool]
) -> tuple[rope.Rope | None, ...]:
    """Return the rotary position embedding of each layer."""
    said, older = keys.value("rope_parameters"), keys.value("rope_scaling")
    for value, key in ((said, "rope_parameters"), (older, "rope_scaling")):
        if value is not None and not isinstance(value, dict):
            raise damaged(keys.place, f"{key} is {value!r}, not an object")
    if row.window_rope:
        said = dict(said or {})
        if strange := [key for key in said if key not in ("full_attention", "sliding_attention")]:
            raise not_computed(keys.place, f"rope_parameters {strange[0]!r} of no kind of layer")
        if older and "rope_type" not in older:
            raise not_computed(keys.place, "a rope_scaling without a rope_type, which transformers does not read")
        if wrong := [value for value in said.values() if value is not None and not isinstance(value, dict)]:
            raise damaged(keys.place, f"rope_parameters has {wrong[0]!r} in the place of an object")
        kinds = {
            kind: (said.get(kind) or {}) | ((older or {}) if kind == "full_attention" else {})
            for kind in ("full_attention", "sliding_attention")
        }
        bases = {"full_attention": keys.number("rope_theta"), "sliding_attention": keys.number("rope_local_base_freq")}
        made = {kind: _rope(kinds[kind], bases[kind], row, keys, head_width) for kind in kinds}
        return tuple(made["full_attention" if window is None else "sliding_attention"] for window in windows)
    one = _rope(older or said or {}, keys.number("rope_theta"), row, keys, head_width)
    return tuple(one if each else None for each in rotated)


def _rope(said: Any, base: float, row: Architecture, keys: Keys, head_width: int) -> rope.Rope:
    """Return a rotary position embedding."""
    if not isinstance(said, dict):
        raise damaged(keys.place, f"rope_parameters has {said!r} in the place of an object")
    own = Keys(said, f"{keys.place}: rope_parameters")
    kind = own.value("rope_type", own.value("type", "default"))
    partial = "partial_rotary_factor" in row.defaults
    if partial and kind in ("su", "yarn"):
        kind = "longrope"
    if not isinstance(kind, str) or kind not in _STRETCHED or (partial and kind not in ("default", "longrope")):
        raise not_computed(keys.place, f"rotations that are stretched by {kind!r}")
    base = own.number("rope_theta", base)
    width = head_width
    if partial:
        width = int(head_width * own.number("partial_rotary_factor", keys.number("partial_rotary_factor")))
        if width % 2 or not 0 < width <= head_width:
            raise damaged(keys.place, f"{width} of {head_width} numbers of a head rotate, which are no pairs")
    else:
        own.only("partial_rotary_factor", 1, 1.0)
    ignored = {"factor"} if kind == "default" else set()  # of "default" with settings that it does not read
    made = _stretched(kind, own, keys, base, width, row)
    own.refuse_others(ignored)
    return made


def _stretched(kind: str, own: Keys, keys: Keys, base: float, width: int, row: Architecture) -> rope.Rope:
    if kind == "default":
        return rope.plain(base, width)
    context = keys.whole("max_position_embeddings", most=1 << 40)
    if kind == "linear":
        return rope.linear(base, width, own.number("factor"))
    original = own.whole("original_max_position_embeddings", context, most=1 << 40)
    if "original_max_position_embeddings" in row.defaults:
        original = keys.whole("original_max_position_embeddings", most=1 << 40)
    if kind == "llama3":
        low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
        return rope.llama3(base, width, own.number("factor"), low, high, original)
    magnitude = own.number("attention_factor") if "attention_factor" in own else None
    if kind == "longrope":
        lists = [numbers(own.value(f"{n}_factor"), f"{n}_factor", keys.place, width // 2) for n in ("short", "long")]
        factor = own.number("factor", context / original)
        magnitude = magnitude or rope.longrope_magnitude(factor, original)
        return rope.longrope(base, width, lists[0], lists[1], original, magnitude)
    factor = own.number("factor", context / original)
    how = rope.Yarn(
        factor,
        original,
        own.optional("beta_fast") or 32.0,
        own.optional("beta_slow") or 1.0,
        own.flag("truncate", otherwise=True),
    )
    scale, whole = own.optional("mscale"), own.optional("mscale_all_dim")
    if magnitude is None and scale and whole:
        magnitude = rope.yarn_magnitude(factor, scale) / rope.yarn_magnitude(factor, whole)
    return rope.yarn(base, width, how, magnitude)
