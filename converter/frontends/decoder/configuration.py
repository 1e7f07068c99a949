"""Configurations of decoders: the sizes of a net, and what each of its layers does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from converter.frontends.decoder.architectures import Architecture
from converter.frontends.decoder.keys import damaged
from converter.frontends.decoder.rope import Rope

#: More than any decoder has: what a damaged file says must not fill the memory.
MOST_LAYERS = 4096
MOST_HEAD_WIDTH = 1 << 16


@dataclass(frozen=True)
class Scales:
    """What a net multiplies, divides and caps.

    Attributes:
        scores: by this the products of queries and keys are divided.
        embedding: times this the embeddings are.
        residual: times this what a part of a layer gives is, before it is added.
        logits: by this they are divided.
        most_score: scores are this times the tanh of their share of it; None: as they are.
        most_logit: the same of logits.
    """

    scores: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    most_score: float | None = None
    most_logit: float | None = None


@dataclass(frozen=True)
class Configuration:
    """A decoder-only language model.

    Attributes:
        architecture: its row of the table.
        width: of the states between layers.
        hidden: width of the feed-forward part.
        heads: of the queries.
        kv_heads: of keys and values; so many groups of query heads share them.
        head_width: numbers of a head.
        vocabulary: number of token ids.
        epsilon: of the norms.
        context: tokens that the model was trained with.
        activation: of the gate.
        ropes: the rotary position embedding of each layer; None: the layer has none.
        windows: tokens that each layer looks back on, itself among them; None: all.
        biases: products that have a bias, by their names in a layer.
        tied: whether the table of embeddings gives the logits, too.
        scales: what is multiplied, divided and capped.
    """

    architecture: Architecture
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    epsilon: float
    context: int
    activation: str
    ropes: tuple[Rope | None, ...]
    windows: tuple[int | None, ...]
    biases: frozenset[str]
    tied: bool
    scales: Scales

    @property
    def layers(self) -> int:
        """Number of them."""
        return len(self.ropes)


def check_heads(heads: int, kv_heads: int, head_width: int, place: Any) -> None:
    """Raise UsageError where query heads are no groups of the others, or a head's numbers no pairs."""
    if heads % kv_heads:
        raise damaged(place, f"its {heads} heads of queries are no groups for {kv_heads} heads of keys and values")
    if head_width % 2 or head_width > MOST_HEAD_WIDTH:
        raise damaged(place, f"heads of {head_width:,} numbers, which are no pairs up to {MOST_HEAD_WIDTH:,}")
