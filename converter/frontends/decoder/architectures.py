"""Architectures of decoders: a row of a table for each, which both file formats are read by.

What a row says of `config.json` is what `transformers` 5 computes: the keys that its class reads, with the values that
it takes for absent ones. What it says of GGUF is how llama.cpp's converter writes the same net.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Names of a norm: that of `transformers` and that of GGUF.
_Names = tuple[str, str]


@dataclass(frozen=True)
class Norms:
    """Where a layer normalizes the states between its parts; None: not there.

    Attributes:
        before_attention: what the attention reads.
        after_attention: what it gives.
        before_feed_forward: what the feed-forward part reads.
        after_feed_forward: what it gives.
    """

    before_attention: _Names | None = None
    after_attention: _Names | None = None
    before_feed_forward: _Names | None = None
    after_feed_forward: _Names | None = None


_BEFORE = Norms(
    before_attention=("input_layernorm", "attn_norm"), before_feed_forward=("post_attention_layernorm", "ffn_norm")
)
_AFTER = Norms(
    after_attention=("post_attention_layernorm", "post_attention_norm"),
    after_feed_forward=("post_feedforward_layernorm", "post_ffw_norm"),
)
_AROUND = Norms(
    before_attention=("input_layernorm", "attn_norm"),
    after_attention=("post_attention_layernorm", "post_attention_norm"),
    before_feed_forward=("pre_feedforward_layernorm", "ffn_norm"),
    after_feed_forward=("post_feedforward_layernorm", "post_ffw_norm"),
)
#: Products of a layer: the name of `transformers`, and of GGUF.
_SPLIT = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FUSED = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
#: Products that have a bias where `attention_bias`, or `mlp_bias`, is true.
ATTENTION_BIASES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP_BIASES = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


@dataclass(frozen=True)
class Architecture:
    """What the decoders of a name have in common.

    Attributes:
        name: of the architecture, which GGUF and, but for `model_type`, `config.json` call it by.
        defaults: the keys of `config.json` that it reads, with the value of an absent one.
        model_type: in `config.json`; empty: the name.
        gguf: the architecture that llama.cpp's converter makes of it; empty: one of the same name; None: none.
        norms: of the states between the parts of a layer.
        head_norm: what of queries and keys is normalized: each head by itself, all heads as one, or nothing.
        products: matrices of a layer, by the name of `transformers` that of GGUF.
        biases: products that always have a bias.
        one_more: whether norms multiply by 1 + weight in `transformers`; GGUF has the sum.
        pairs: whether GGUF has the two rows of q and k that rotate together beside each other.
        root_of_width: whether embeddings are multiplied by the root of the width.
        windows: which layers look back on a window alone, where the configuration does not list them: none, `all`, all
            but every `window_every`-th (`every`), those from `max_window_layers` on (`after`), or those that do not
            rotate (`unrotated`).
        window_every: the distance of the layers that look back on all.
        window_rope: whether layers of a window have a base of rotations of their own.
        wide_layers: number of layers of which GGUF means scores divided by the root of width over heads.
    """

    name: str
    defaults: Mapping[str, Any]
    model_type: str = ""
    gguf: str | None = ""
    norms: Norms = _BEFORE
    head_norm: Literal["", "head", "all"] = ""
    products: Mapping[str, str] = field(default_factory=lambda: _SPLIT)
    biases: tuple[str, ...] = ()
    one_more: bool = False
    pairs: bool = False
    root_of_width: bool = False
    windows: Literal["", "all", "every", "after", "unrotated"] = ""
    window_every: int = 0
    window_rope: bool = False
    wide_layers: int = 0

    @property
    def in_gguf(self) -> str | None:
        """The architecture that a GGUF file of it names; None: there is none."""
        return self.name if self.gguf == "" else self.gguf


#: Keys that every decoder reads, with the values of LLaMA.
_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 1e4,
}
_LLAMA_BIASES = {"attention_bias": False, "mlp_bias": False}
_QWEN = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_GEMMA = _LLAMA | {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_GEMMA2 = {name: value for name, value in _GEMMA.items() if name != "hidden_act"} | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = {name: value for name, value in _GEMMA2.items() if name != "attn_logit_softcapping"} | {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
}

_ROWS = (
    Architecture("llama", _LLAMA | _LLAMA_BIASES, pairs=True),
    Architecture("mistral", _MISTRAL, gguf="llama", pairs=True, windows="all"),
    Architecture("ministral", _MISTRAL | {"layer_types": None}, gguf=None, windows="all"),
    Architecture("qwen2", _QWEN, biases=ATTENTION_BIASES[:3], windows="after"),
    Architecture("qwen3", _QWEN | {"head_dim": 128, "attention_bias": False}, head_norm="head", windows="after"),
    Architecture(
        "phi3",
        _LLAMA
        | {
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "partial_rotary_factor": 1.0,
        },
        products=_FUSED,
        windows="all",
    ),
    Architecture(
        "smollm3",
        _LLAMA
        | _LLAMA_BIASES
        | {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "rope_theta": 2e6,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "layer_types": None,
        },
        pairs=True,
        windows="unrotated",
    ),
    Architecture(
        "granite",
        _LLAMA
        | _LLAMA_BIASES
        | {
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        },
        pairs=True,
    ),
    Architecture(
        "olmo2",
        _LLAMA | {"vocab_size": 50304, "rms_norm_eps": 1e-5, "attention_bias": False},
        norms=_AFTER,
        head_norm="all",
    ),
    Architecture("gemma", _GEMMA, one_more=True, root_of_width=True),
    Architecture(
        "gemma2",
        _GEMMA2,
        norms=_AROUND,
        one_more=True,
        root_of_width=True,
        windows="every",
        window_every=2,
        wide_layers=46,
    ),
    Architecture(
        "gemma3",
        _GEMMA3,
        model_type="gemma3_text",
        norms=_AROUND,
        head_norm="head",
        one_more=True,
        root_of_width=True,
        windows="every",
        window_every=6,
        window_rope=True,
        wide_layers=62,
    ),
)
#: Rows by name.
BY_NAME = {row.name: row for row in _ROWS}
#: Rows by the `model_type` of `config.json`.
BY_MODEL_TYPE = {row.model_type or row.name: row for row in _ROWS}
#: Names of all architectures.
ARCHITECTURES = tuple(BY_NAME)
