"""Configurations from the metadata of a GGUF file, as llama.cpp reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converter.frontends.decoder import rope
from converter.frontends.decoder.architectures import BY_NAME, Architecture
from converter.frontends.decoder.configuration import MOST_LAYERS, Configuration, Scales, check_heads
from converter.frontends.decoder.keys import OTHERWISE, Keys, damaged, not_computed, numbers
from converter.frontends.decoder.stored import StoredTensor
from converter.support.errors import UsageError

#: Of Llama 3.1 and later: by what the frequency of each pair is divided.
_FACTORS = "rope_freqs.weight"
#: Of LongRoPE: the same for rows up to the original length, and for longer ones.
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
#: Tensors that the configuration is made of.
OF_CONFIGURATION = (_FACTORS, _SHORT, _LONG)
#: The texts of a card by the entries that hold them, the first that is there.
_CARD = {
    "name": ("general.name",),
    "description": ("general.description",),
    "version": ("general.version",),
    "author": ("general.author", "general.organization"),
    "license": ("general.license", "general.license.name"),
    "source": ("general.source.url", "general.source.repo_url", "general.url"),
    "base_model": ("general.base_model.0.repo_url",),
}
#: Entries that say nothing of what a net computes.
_HARMLESS = ("vocab_size", "tensor_data_layout", "use_parallel_residual", "rope.scaling.finetuned")
#: Entries with the values by which nothing is computed that is not computed anyway.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.temperature_scale": (0,),
    "attention.shared_kv_layers": (0,),
    "router_logit_softcapping": (0,),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
}


def configuration_of(
    metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor], biases: frozenset[str], path: Path
) -> Configuration:
    """Return the configuration that a GGUF file tells.

    Args:
        metadata: by key.
        tensors: by the names of GGUF.
        biases: products that have a bias, by the names of `transformers`, as far as the tensors tell.
        path: of the file, for errors.

    Raises:
        UsageError: the architecture is not known, an entry is missing or damaged, or asks for what is not computed.
    """
    row = row_of(metadata, path)
    keys = Keys(metadata, path, prefix=f"{row.name}.")
    layers = keys.whole("block_count", most=MOST_LAYERS)
    heads, width = _same(keys, "attention.head_count", layers), keys.whole("embedding_length")
    kv_heads = _same(keys, "attention.head_count_kv", layers, heads)
    head_width = keys.whole("attention.key_length", max(width // heads, 1))
    check_heads(heads, kv_heads, head_width, path)
    keys.only("attention.value_length", head_width)
    for key, computed in _NEUTRAL.items():
        keys.only(key, *computed)
    windows = _windows(row, keys, layers)
    c = Configuration(
        row,
        width,
        _same(keys, "feed_forward_length", layers),
        heads,
        kv_heads,
        head_width,
        tensors["token_embd.weight"].shape[0],
        keys.number("attention.layer_norm_rms_epsilon"),
        keys.whole("context_length", most=1 << 40),
        "gelu_tanh" if row.one_more else "silu",
        _ropes(row, keys, tensors, head_width, windows),
        windows,
        biases | frozenset(row.biases),
        "output.weight" not in tensors,
        _scales(row, keys, head_width, width, heads, layers),
    )
    keys.refuse_others(_HARMLESS)
    return c


def card_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return what a file says of the model for people, by names as of a model card."""
    said = {name: [metadata.get(key) for key in keys] for name, keys in _CARD.items()}
    texts = {name: [text for text in found if isinstance(text, str) and text.strip()] for name, found in said.items()}
    return {name: found[0] for name, found in texts.items() if found}


def row_of(metadata: Mapping[str, Any], path: Path) -> Architecture:
    """Return the architecture of a file.

    Raises:
        UsageError: it is none that is computed.
    """
    named, kind = metadata.get("general.architecture"), metadata.get("general.type", "model")
    if kind == "adapter" or "adapter.type" in metadata:
        raise UsageError(
            f"{path} is an adapter for a model of {named}, and no model: build the model that it was trained on, with "
            "LoRA of its rank, and import it into the program",
            page="language-models",
        )
    if kind != "model" or named == "clip":
        raise UsageError(
            f"{path} is the {named if kind == 'model' else kind} part of a model, without its language model: take the "
            "other .gguf file of the model",
            page="language-models",
        )
    if isinstance(parts := metadata.get("split.count"), int) and parts > 1:
        raise UsageError(
            f"{path} is one of {parts} parts of a model: join them first (llama-gguf-split --merge)",
            page="language-models",
        )
    row = BY_NAME.get(named) if isinstance(named, str) else None
    if row is None or row.in_gguf != named:
        names = ", ".join(name for name, each in BY_NAME.items() if each.in_gguf == name)
        raise UsageError(
            f"{path} holds a model of the architecture {named!r}; decoders are read of {names}. For another, "
            f"{OTHERWISE}",
            page="language-models",
        )
    return row


def _same(keys: Keys, key: str, layers: int, otherwise: int | None = None) -> int:
    """Return a whole number that is the same in all layers, of one number or a list."""
    found = keys.value(key)
    if not isinstance(found, list | np.ndarray):
        return keys.whole(key, otherwise)
    if len(found) != layers:
        raise damaged(keys.place, f"{key} has {len(found)} numbers for {layers} layers")
    if len({int(each) for each in found}) != 1:
        raise not_computed(keys.place, f"{key} that differs between layers")
    return Keys({key: int(found[0])}, keys.place).whole(key)


def _scales(row: Architecture, keys: Keys, head_width: int, width: int, heads: int, layers: int) -> Scales:
    scale = keys.optional("attention.scale")
    usual = width / heads if row.wide_layers == layers else head_width
    caps = [
        keys.optional(key) if key in keys or not (usual_cap := row.defaults.get(key)) else usual_cap
        for key in ("attn_logit_softcapping", "final_logit_softcapping")
    ]
    if row.norms.before_attention is None:  # whose parts read the states as they are
        keys.only("residual_scale", 1.0)
    return Scales(
        1 / scale if scale else float(np.sqrt(usual)),
        keys.optional("embedding_scale") or 1.0,
        keys.optional("residual_scale") or 1.0,
        keys.optional("logit_scale") or 1.0,
        *caps,
    )


def _windows(row: Architecture, keys: Keys, layers: int) -> tuple[int | None, ...]:
    """Return on how many tokens each layer looks back; None: on all."""
    window, pattern = keys.optional("attention.sliding_window"), keys.value("attention.sliding_window_pattern")
    if window is None and row.windows == "every" and "attention.sliding_window" not in keys and not row.window_rope:
        window = float(row.defaults["sliding_window"])
    if window is None:
        return (None,) * layers
    if isinstance(pattern, list | np.ndarray):
        if len(pattern) != layers or any(each not in (0, 1) for each in pattern):
            raise damaged(keys.place, f"attention.sliding_window_pattern is no list of 0 or 1 for {layers} layers")
        slides = [bool(each) for each in pattern]
    else:
        every = row.window_every if pattern is None else keys.whole("attention.sliding_window_pattern")
        slides = [not every or (layer + 1) % every != 0 for layer in range(layers)]
        if not every and row.windows not in ("", "all"):
            raise not_computed(keys.place, "a sliding window of layers that it does not name")
    size = keys.whole("attention.sliding_window", int(window))
    return tuple(size if each else None for each in slides)


def _ropes(
    row: Architecture,
    keys: Keys,
    tensors: Mapping[str, StoredTensor],
    head_width: int,
    windows: tuple[int | None, ...],
) -> tuple[rope.Rope | None, ...]:
    """Return the rotary position embedding of each layer."""
    rotated = keys.whole("rope.dimension_count", head_width)
    if rotated != head_width and ("partial_rotary_factor" not in row.defaults or rotated > head_width or rotated % 2):
        raise not_computed(keys.place, f"heads of {head_width} numbers of which {rotated} rotate")
    base = keys.number("rope.freq_base", float(row.defaults["rope_theta"]))
    usual = _stretched(keys, tensors, base, rotated)
    local = keys.number("rope.freq_base_swa", float(row.defaults.get("rope_local_base_freq", base)))
    if not row.window_rope and local != base and any(windows):
        raise not_computed(keys.place, f"rope.freq_base_swa {local:g}")
    in_windows = rope.plain(local, rotated) if row.window_rope else usual
    every = row.defaults.get("no_rope_layer_interval", 0)
    if row.name == "granite" and not keys.flag("rope.scaling.finetuned", otherwise=True):
        return (None,) * len(windows)
    return tuple(
        None if every and (layer + 1) % every == 0 else usual if window is None else in_windows
        for layer, window in enumerate(windows)
    )


def _stretched(keys: Keys, tensors: Mapping[str, StoredTensor], base: float, width: int) -> rope.Rope:
    """Return the embedding of layers that look back on all, by `rope.scaling` and the tensors of factors."""
    kind = keys.value("rope.scaling.type", "none" if "rope.scaling.factor" not in keys else "linear")
    older = keys.optional("rope.scale_linear")  # before there were types
    factor = keys.optional("rope.scaling.factor") or older or 1.0
    original = keys.whole("rope.scaling.original_context_length", keys.whole("context_length", most=1 << 40), 1 << 40)
    magnitude = keys.optional("rope.scaling.attn_factor") or 1.0
    for key in ("yarn_ext_factor", "yarn_attn_factor"):
        keys.only(f"rope.scaling.{key}", 1.0, *((-1.0,) if key == "yarn_ext_factor" else ()))
    keys.only("rope.scaling.yarn_log_multiplier", 0.0)
    keys.only("rope.scaling.alpha", 0.0)
    fast, slow = (keys.optional(f"rope.scaling.yarn_beta_{key}") for key in ("fast", "slow"))
    if (_SHORT in tensors) != (_LONG in tensors):
        raise damaged(keys.place, f"it has one of {_SHORT} and {_LONG} alone")
    if _SHORT in tensors:
        if kind not in ("none", "longrope"):
            raise not_computed(keys.place, f"factors of rotations that are stretched by {kind} besides")
        short, long = (numbers(np.asarray(tensors[name]), name, keys.place, width // 2) for name in (_SHORT, _LONG))
        return rope.longrope(base, width, short, long, original, magnitude)
    if magnitude != 1.0:
        raise not_computed(keys.place, f"rope.scaling.attn_factor {magnitude:g} without factors of LongRoPE")
    if kind == "yarn":
        made = rope.yarn(base, width, rope.Yarn(factor, original, fast or 32.0, slow or 1.0))
    elif kind in ("none", "linear"):
        scale = 1.0 if kind == "none" and older is None else factor
        made = rope.plain(base, width) if scale == 1.0 else rope.linear(base, width, scale)
    else:
        raise not_computed(keys.place, f"rotations that are stretched by {kind!r}")
    if _FACTORS not in tensors:
        return made
    return made.divided_by(numbers(np.asarray(tensors[_FACTORS]), _FACTORS, keys.place, width // 2))
