"""Heads of models: the part that a scheme trains, and heads over the words of an embedding, which stay frozen."""

from __future__ import annotations

from collections.abc import Mapping

from converter.support.notes import Note
from converter.training.schemes.dora import problem as problem_of_dora
from converter.training.schemes.lora import Contraction, LoRA
from converter.training.schemes.skip import Adapting
from converter.training.schemes.structure import Member

#: What is granted to each parameter, and why.
Granted = Mapping[str, tuple[float | Adapting, str]]


def whole_head(everything: list[Member]) -> dict[str, tuple[float, str]]:
    """Return for every output with a loss the layers of its last products; of names of one part see `_goes_with`.

    Learned centres (prototypes) of whose distances the output is made are such a layer.
    Of a matrix tied to the embedding also what is after the others, as a norm: the layer of such a matrix is that of
    the embedding, which may hold more than the head does. An output without any product has what it reads last.
    """
    found: dict[str, tuple[float, str]] = {}
    for output in dict.fromkeys(name for m in everything for name in sorted(m.outputs)):
        before = [m for m in everything if output in m.outputs]
        for last in [m for m in before if output in m.ends] or before[-1:]:
            found |= _tied_head(before, last, output) if last.tied else _head_of(everything, last, output)
    return found


def _head_of(everything: list[Member], last: Member, output: str) -> dict[str, tuple[float, str]]:
    return {m.name: (1.0, f"in the head, {last.layer}") for m in everything if _goes_with(m, last, output)}


def _tied_head(before: list[Member], last: Member, output: str) -> dict[str, tuple[float, str]]:
    others = [m.last_use for m in before if m.role == "kernel" and output not in m.ends]
    after = [m for m in before if m is last or m.first_use > max(others, default=-1)]
    return {m.name: (1.0, f"in the head, whose matrix is tied to the embedding, {last.name}") for m in after}


def _goes_with(member: Member, last: Member, output: str) -> bool:
    """Return whether a parameter is of a layer: by name, or where names tell no layers (`w2`, `b2`) by use.

    Of these, biases and scales are of it that are used after the last product of the output.
    """
    if member.layer == member.name:
        return member is last or (member.role in ("bias", "scale") and output in member.follows)
    return member.layer == last.layer


def own_head(everything: list[Member]) -> dict[str, tuple[float, str]]:
    """Return the head without a matrix over the words of the embedding, which would be most of what trains."""
    kept = {m.name for m in everything if m.tied or scores_words(m, everything)}
    return {name: grant for name, grant in whole_head(everything).items() if name not in kept}


def scores_words(member: Member, everything: list[Member]) -> bool:
    """Return whether a kernel gives logits of the words that an embedding of the same shape looks up."""
    if member.role != "kernel" or not isinstance(member.place, Contraction):
        return False
    shape = member.place.b[-1], member.place.fan_in
    return bool(member.ends) and any(m.role == "embedding" and m.value.shape == shape for m in everything)


def without_words(granted: Granted, everything: list[Member]) -> Granted:
    """Return what is granted, and that a head over the words of the embedding stays as it is."""
    kept = (0.0, _KEPT)
    return {**granted, **{m.name: kept for m in everything if scores_words(m, everything)}}


def without_adapter(kernels: list[Member], lora: LoRA, any_rank: bool = False) -> dict[str, tuple[float, str]]:
    """Return the kernels that have no such adapter, or, unless `any_rank`, one as large as half of them, and why."""
    reasons: dict[str, str | None] = {}
    for member in kernels:
        if not isinstance(member.place, Contraction):
            reasons[member.name] = member.place
        elif not any_rank and lora.rank > member.place.largest_rank // 2:
            reasons[member.name] = f"one of rank {lora.rank} has more than half of its numbers"
        else:
            reasons[member.name] = problem_of_dora(member.place) if lora.dora else None
    return {name: (0.0, f"{_NO_ADAPTER}{why}") for name, why in reasons.items() if why is not None}


def without_adapter_notes(reasons: Mapping[str, str]) -> list[Note]:
    """Return what to say of kernels that a scheme has no adapter for; from reasons by parameter."""
    return [Note(name, "frozen", why) for name, why in reasons.items() if why.startswith(_NO_ADAPTER)]


def kept_head_notes(reasons: Mapping[str, str]) -> list[Note]:
    """Return what to say of heads that a scheme leaves out, though it trains heads; from reasons by parameter."""
    return [Note(name, "frozen", _KEPT) for name, why in reasons.items() if why == _KEPT]


_NO_ADAPTER = "it has no adapter: "
#: Why a head that is as large as the embedding does not train.
_KEPT = (
    "logits of the embedding's words: much of the model, kept as PEFT keeps it; a rule of its name in update trains "
    "it, 1 whole or a LoRA"
)
