"""Choices of whole layers: all, the biases, the last blocks."""

from __future__ import annotations

from collections.abc import Callable

from converter.support.errors import UsageError
from converter.training.schemes.heads import Granted, own_head, whole_head, without_words
from converter.training.schemes.structure import Member


def full(everything: list[Member]) -> dict[str, tuple[float, str]]:
    """Choose all there is."""
    return {m.name: (1.0, "everything trains") for m in everything}


def bias_only(everything: list[Member]) -> Granted:
    """Choose the biases and the head. Raise UsageError where the head has all the biases there are."""
    head = own_head(everything)
    biases = {m.name: (1.0, "a bias") for m in everything if m.role == "bias" and m.parameter.trainable}
    if biases.keys() <= whole_head(everything).keys():
        raise UsageError(
            "update scheme 'bias-only': the model has no biases outside of its head, so it would equal 'head': "
            "choose 'head', 'lora' or rules of your own",
            page="update-rules",
        )
    return without_words(biases | head, everything)


def trained_blocks(everything: list[Member]) -> list[str]:
    """Return blocks that train anything, in order of first use."""
    return list(dict.fromkeys(m.block for m in everything if m.parameter.trainable))


def last(count: int) -> Callable[[list[Member]], dict[str, tuple[float, str]]]:
    """Return what chooses all that is in the last blocks on the way to each output with a loss, so many of them."""

    def choose(everything: list[Member]) -> dict[str, tuple[float, str]]:
        outputs = {name for m in everything for name in m.outputs}
        ways = [trained_blocks([m for m in everything if name in m.outputs]) for name in outputs]
        chosen = {block for way in ways for block in way[-count:]}
        return {m.name: (1.0, f"in {m.block}, one of the last {count} blocks") for m in everything if m.block in chosen}

    return choose
