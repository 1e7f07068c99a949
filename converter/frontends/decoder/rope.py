"""Rotary position embeddings: the frequencies of each way that checkpoints stretch them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Rope:
    """The rotary position embedding of a layer.

    Attributes:
        frequencies: radians per position, of each pair of numbers that rotates.
        magnitude: by which cosines and sines are multiplied.
        long: the frequencies of rows of more than `original` tokens; None: the same.
        original: tokens of a row that `frequencies` are for; 0: any.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    long: tuple[float, ...] | None = None
    original: int = 0

    def tables(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return cosines and sines by position and pair, float32 [length, pairs]."""
        chosen = self.long if self.long is not None and length > self.original else self.frequencies
        angles = np.arange(length)[:, None] * np.asarray(chosen)
        return tuple((self.magnitude * part).astype(np.float32) for part in (np.cos(angles), np.sin(angles)))

    def divided_by(self, factors: Sequence[float]) -> Rope:
        """Return the embedding with each frequency divided by a factor."""
        return Rope(tuple(f / float(by) for f, by in zip(self.frequencies, factors, strict=True)), self.magnitude)


class Yarn(NamedTuple):
    """How YaRN stretches (Peng et al., 2023): slow pairs by `factor`, quick ones not, those between by a ramp.

    Attributes:
        factor: by which slow frequencies are divided.
        original: tokens of a row in the training before.
        fast: rotations within these tokens from which on a pair stays as it is.
        slow: up to which it is divided.
        truncate: whether the ends of the ramp are whole pairs.
    """

    factor: float
    original: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True


def plain(base: float, width: int) -> Rope:
    """Return the embedding of a base, of `width` rotated numbers."""
    return Rope(tuple(base ** -(np.arange(0, width, 2) / width)))


def linear(base: float, width: int, factor: float) -> Rope:
    """Return the embedding whose positions are divided by a factor."""
    return Rope(tuple(base ** -(np.arange(0, width, 2) / width) / factor))


def llama3(base: float, width: int, factor: float, low: float, high: float, original: float) -> Rope:
    """Return the embedding of Llama 3.1: slow pairs divided by `factor`, quick ones not, those between mixed.

    Args:
        base: of the frequencies.
        width: rotated numbers.
        factor: by which slow frequencies are divided.
        low: rotations within `original` tokens below which a pair is slow.
        high: above which it is quick.
        original: tokens of a row in the training before.
    """
    frequencies = np.asarray(plain(base, width).frequencies)
    turns = original * frequencies / (2 * math.pi)
    mixed = np.clip((turns - low) / (high - low), 0, 1) if high != low else (turns >= low).astype(float)
    return Rope(tuple((1 - mixed) * frequencies / factor + mixed * frequencies))


def yarn(base: float, width: int, how: Yarn, magnitude: float | None = None) -> Rope:
    """Return the embedding that YaRN stretches.

    Args:
        base: of the frequencies.
        width: rotated numbers.
        how: it is stretched.
        magnitude: of cosines and sines; None: the paper's, 0.1 log(factor) + 1.
    """

    def pair(rotations: float) -> float:
        return width * math.log(how.original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(how.fast), pair(how.slow)
    if how.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = np.clip((np.arange(width // 2) - first) / ((last - first) or 0.001), 0, 1)
    frequencies = np.asarray(plain(base, width).frequencies)
    stretched = frequencies / how.factor * ramp + frequencies * (1 - ramp)
    return Rope(tuple(stretched), yarn_magnitude(how.factor) if magnitude is None else magnitude)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """Return by what YaRN multiplies cosines and sines."""
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def longrope(
    base: float, width: int, short: Sequence[float], long: Sequence[float], original: int, magnitude: float
) -> Rope:
    """Return the embedding of LongRoPE: a factor for each pair, others for rows of more than `original` tokens."""
    frequencies = np.asarray(plain(base, width).frequencies)
    return Rope(
        tuple(frequencies / np.asarray(short, float)), magnitude, tuple(frequencies / np.asarray(long, float)), original
    )


def longrope_magnitude(factor: float, original: int) -> float:
    """Return by what LongRoPE multiplies cosines and sines, from how many times longer rows are than before."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
