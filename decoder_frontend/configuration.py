"""Configurations of decoders: what the metadata of a file says of the net."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from converter.support.errors import UsageError

#: Architectures by the name that GGUF and `config.json` have for them.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


@dataclass(frozen=True)
class Configuration:
    """A decoder of language: RMSNorm, rotated positions, grouped queries, a gated feed-forward part.

    Attributes:
        architecture: one of `ARCHITECTURES`.
        layers: number of them.
        width: of the states between layers.
        hidden: width of the feed-forward part.
        heads: of the queries.
        key_heads: of the keys and values; so many groups of queries share them.
        head_width: numbers of a head.
        vocabulary: number of token ids.
        epsilon: of the norms.
        rope_base: of the slowest rotation.
        context: tokens that the model was trained with.
        rope_scale: positions are divided by it.
        window: tokens that a layer of a sliding window looks back on; None: all.
        window_every: of so many layers the last looks back on all.
        window_rope_base: of the slowest rotation in layers of a window.
    """

    architecture: str
    layers: int
    width: int
    hidden: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    epsilon: float
    rope_base: float
    context: int
    rope_scale: float = 1.0
    window: int | None = None
    window_every: int = 1
    window_rope_base: float = 10_000.0

    @property
    def activation(self) -> Literal["silu", "gelu"]:
        """Of the gate."""
        return "gelu" if self.architecture == "gemma3" else "silu"

    @property
    def scales_embedding(self) -> bool:
        """Whether the states begin as the embeddings times the root of the width."""
        return self.architecture == "gemma3"

    @property
    def norms_outputs(self) -> bool:
        """Whether what a part of a layer gives is normalized before it is added."""
        return self.architecture == "gemma3"

    def looks_back(self, layer: int) -> int | None:
        """Return on how many tokens a layer looks back; None: on all."""
        return None if (layer + 1) % self.window_every == 0 and self.window_every > 1 else self.window

    def rotation(self, layer: int) -> tuple[float, float]:
        """Return the base of a layer's rotations, and what positions are divided by."""
        if self.window_every > 1 and self.looks_back(layer) is not None:
            return self.window_rope_base, 1.0
        return self.rope_base, self.rope_scale


def configuration_of(metadata: Mapping[str, Any], vocabulary: int, path: Any) -> Configuration:
    """Return the configuration that the metadata of a GGUF file tells.

    Args:
        metadata: by key.
        vocabulary: rows of the table of embeddings.
        path: of the file, for errors.

    Raises:
        UsageError: an architecture that is not known, a number that is missing or none, or a form that is not computed.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UsageError(
            f"{path} holds a model of the architecture {architecture!r}; decoders are read of "
            f"{', '.join(ARCHITECTURES)}. Build others from their module of "
            "transformers: pocketune.build(module, inputs=...)",
            page="language-models",
        )
    own = _Own(metadata, architecture, path)
    heads, width = own.whole("attention.head_count"), own.whole("embedding_length")
    head_width = own.whole("attention.key_length", width // heads)
    _refuse(own, head_width)
    gemma = architecture == "gemma3"
    return Configuration(
        architecture,
        own.whole("block_count"),
        width,
        own.whole("feed_forward_length"),
        heads,
        own.whole("attention.head_count_kv", heads),
        head_width,
        vocabulary,
        own.number("attention.layer_norm_rms_epsilon"),
        own.number("rope.freq_base", 1_000_000.0 if gemma else 10_000.0),
        own.whole("context_length"),
        own.number("rope.scaling.factor", 1.0) if metadata.get(own.key("rope.scaling.type")) == "linear" else 1.0,
        own.whole("attention.sliding_window") if own.key("attention.sliding_window") in metadata else None,
        6 if gemma else 1,
    )


def _refuse(own: _Own, head_width: int) -> None:
    """Raise where a file asks for what is not computed."""
    for key, most, what in (
        ("expert_count", 0, "a mixture of experts"),
        ("attn_logit_softcapping", 0, "scores that are capped"),
        ("final_logit_softcapping", 0, "logits that are capped"),
    ):
        if own.metadata.get(own.key(key), most) != most:
            raise own.refused(what)
    if own.metadata.get(own.key("rope.scaling.type"), "none") not in ("none", "linear"):
        raise own.refused(f"rotations that are stretched by {own.metadata[own.key('rope.scaling.type')]}")
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.metadata.get(own.key(key), head_width) != head_width:
            raise own.refused(f"heads of {head_width} numbers of which {key} is {own.metadata[own.key(key)]}")


@dataclass(frozen=True)
class _Own:
    """The entries of an architecture, `qwen2.block_count`."""

    metadata: Mapping[str, Any]
    architecture: str
    path: Any

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def refused(self, what: str) -> UsageError:
        return UsageError(
            f"{self.path} asks for {what}, which a program of a file does not compute: build its module of "
            "transformers, pocketune.build(module, inputs=...)",
            page="language-models",
        )

    def number(self, name: str, otherwise: float | None = None) -> float:
        value = self.metadata.get(self.key(name), otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UsageError(
                f"{self.path} is damaged: {self.key(name)} is {value!r}, not a positive number. Copy or download it "
                "again",
                page="language-models",
            )
        return float(value)

    def whole(self, name: str, otherwise: int | None = None) -> int:
        value = self.number(name, otherwise)
        if value != int(value):
            raise UsageError(f"{self.path} is damaged: {self.key(name)} is {value}", page="language-models")
        return int(value)
