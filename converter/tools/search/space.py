"""Search space: the biases of the last blocks, and of each layer's weight a share of its channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from glob import escape
from itertools import takewhile
from typing import Any

from converter.training.schemes.structure import Member

#: Shares of the input channels of a weight that are tried.
RATIOS = (1 / 8, 1 / 4, 1 / 2, 1.0)
#: Parameters that count as the weight of a layer.
_WEIGHTS = ("kernel", "embedding")

#: A scheme as JSON: its name, or rules by parameter.
Update = str | dict[str, float]


@dataclass(frozen=True)
class Layer:
    """A weight outside of the head that can train.

    Attributes:
        parameter: its name.
        block: the number of its block.
        ratios: the shares of it that differ, ascending.
    """

    parameter: str
    block: int
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class Block:
    """Layers that belong together.

    Attributes:
        name: of the block.
        biases: its parameters that are added.
        parameters: all of its parameters that can train.
    """

    name: str
    biases: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Candidate:
    """A point of a space.

    Attributes:
        biases: of how many of the last blocks that have biases these train.
        ratios: how much of each layer's weight trains.
    """

    biases: int
    ratios: tuple[float, ...]

    def choices(self) -> tuple[float, ...]:
        """Return what is chosen of each group: the biases, then the layers."""
        return (self.biases, *self.ratios)


@dataclass(frozen=True)
class Space:
    """All candidates: whatever they choose, the head trains.

    Attributes:
        blocks: those before the head, in order.
        layers: those before the head, in order.
        head: the parameters of the head.
    """

    blocks: tuple[Block, ...]
    layers: tuple[Layer, ...]
    head: tuple[str, ...]

    @property
    def with_biases(self) -> list[int]:
        """The numbers of the blocks that have biases."""
        return [number for number, block in enumerate(self.blocks) if block.biases]

    @property
    def groups(self) -> list[tuple[float, ...]]:
        """What can be chosen in each group beside nothing, 0: how many biases, then which ratio of each layer."""
        return [tuple(range(1, len(self.with_biases) + 1)), *(layer.ratios for layer in self.layers)]

    @property
    def columns(self) -> list[tuple[int, float]]:
        """Every choice with the number of its group."""
        return [(group, choice) for group, choices in enumerate(self.groups) for choice in choices]

    def candidate(self, choices: Sequence[float]) -> Candidate:
        """Return the candidate of the choices in the order of `groups`."""
        return Candidate(int(choices[0]), tuple(map(float, choices[1:])))

    def alone(self, group: int, choice: float) -> Candidate:
        """Return one choice, and nothing in the other groups."""
        return self.candidate([choice if g == group else 0 for g in range(len(self.groups))])

    def first_block(self, group: int, choice: float) -> int:
        """Return the first block that a choice trains."""
        return self.with_biases[-int(choice)] if group == 0 else self.layers[group - 1].block

    def shortened(self, granted: Mapping[str, float]) -> list[Candidate]:
        """Return what a scheme grants each parameter that can be chosen: all, then of fewer of the last blocks."""

        def ratio(layer: Layer, first: int) -> float:
            able = [r for r in layer.ratios if layer.block >= first and r <= granted.get(layer.parameter, 0)]
            return max(able, default=0)

        def has_biases(number: int) -> bool:
            return all(map(granted.get, self.blocks[number].biases))

        blocks = [*takewhile(has_biases, reversed(self.with_biases))]
        found = [
            self.candidate([sum(number >= first for number in blocks), *(ratio(layer, first) for layer in self.layers)])
            for first in range(len(self.blocks))
        ]
        return [candidate for candidate in dict.fromkeys(found) if any(candidate.choices())]

    def update(self, candidate: Candidate) -> Update:
        """Return the candidate as a scheme: `head`, or rules."""
        if not any(candidate.choices()):
            return "head"
        granted = dict.fromkeys(self.head, 1.0)
        for number in self.with_biases[len(self.with_biases) - candidate.biases :]:
            granted |= dict.fromkeys(self.blocks[number].biases, 1.0)
        pairs = zip(self.layers, candidate.ratios, strict=True)
        granted |= {layer.parameter: ratio for layer, ratio in pairs if ratio}
        return as_rules(granted)

    def describe(self, candidate: Candidate, head: bool = True) -> str:
        """Return the candidate in words, with or without the head, which is in all of them."""
        said = [f"biases of the last {candidate.biases}"] if candidate.biases else []
        pairs = zip(self.layers, candidate.ratios, strict=True)
        said += [f"{layer.parameter} {share_of(ratio)}" for layer, ratio in pairs if ratio]
        return ", ".join([*said, "head"] if head else said)


def as_rules(granted: Mapping[str, float]) -> dict[str, float]:
    """Update rules that grant each parameter what it is given here."""
    return {escape(name): granted[name] for name in sorted(granted)}


def share_of(ratio: float) -> str:
    """Return a ratio as a user writes it; all of it is not mentioned further."""
    return str(Fraction(ratio).limit_denominator(1000))


def space_of(members: Sequence[Member], head: Sequence[str], ratios: Sequence[float] = RATIOS) -> Space:
    """Return the space of a model.

    Args:
        members: its parameters, in order of use.
        head: names of those that always train.
        ratios: shares of the channels to choose from, ascending.
    """
    able = [m for m in members if m.parameter.trainable and not m.parameter.idle and m.name not in head]
    names = list(dict.fromkeys(m.block for m in able))
    blocks = [
        Block(
            name,
            tuple(m.name for m in able if m.block == name and m.role == "bias"),
            tuple(m.name for m in able if m.block == name),
        )
        for name in names
    ]
    layers = [Layer(m.name, names.index(m.block), _distinct(m, ratios)) for m in able if m.role in _WEIGHTS]
    return Space(tuple(blocks), tuple(layers), tuple(head))


def _distinct(member: Member, ratios: Sequence[float]) -> tuple[float, ...]:
    """Return the ratios that come to different numbers of channels; a weight that cannot be cut trains whole."""
    if member.role != "kernel" or not member.channels:
        return (1.0,)
    by_channels: dict[int, float] = {}
    for ratio in ratios:
        by_channels[max(round(ratio * member.channels), 1)] = ratio
    return tuple(by_channels.values())


def read_space(source: Any, ratios: Sequence[float] = RATIOS, scored: Collection[str] | None = None) -> Space:
    """Return the space of an imported model; `scored` names the outputs that enter the loss, None: all."""
    from converter.passes import absorb_layout
    from converter.passes.canonical import canonicalize
    from converter.training.dropout import without_dropout
    from converter.training.schemes import update_scheme
    from converter.training.schemes.structure import members

    graph = absorb_layout(canonicalize(without_dropout(source.graph)))
    head = [row.parameter for row in update_scheme("head").resolve(graph, source.blocks, scored) if row.fraction]
    return space_of(members(graph, source.blocks, scored), head, ratios)


def granted(source: Any, update: str, scored: Collection[str] | None = None) -> Mapping[str, float]:
    """Return what a named scheme grants each parameter of an imported model; `scored` as of `read_space`."""
    from converter.passes import absorb_layout
    from converter.passes.canonical import canonicalize
    from converter.training.dropout import without_dropout
    from converter.training.schemes import update_scheme

    graph = absorb_layout(canonicalize(without_dropout(source.graph)))
    return {row.parameter: row.fraction for row in update_scheme(update).resolve(graph, source.blocks, scored)}
