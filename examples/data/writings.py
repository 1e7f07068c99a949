"""Short texts of four kinds: tweets, and sentences of film reviews, editorials and reviews of things sold."""

from __future__ import annotations

import tarfile
from functools import cache

import numpy as np

from examples.weights.packages import resource

KINDS = ("tweets", "movieReviewSnippets", "nytEditorialSnippets", "amazonReviewSnippets")
#: What a keyboard without capitals has. 0 is before the first character and after the last, 1 any other one.
ALPHABET = "\0\1 abcdefghijklmnopqrstuvwxyz0123456789.,'\"!?-:;()&@#$%/"
_ARCHIVE = "vaderSentiment-2.5/additional_resources/hutto_ICWSM_2014.tar.gz"


def rated(kind: str) -> list[tuple[float, str]]:
    """Texts of a kind, each with what twenty readers found, -4 (unfriendly) to 4 (Hutto and Gilbert, ICWSM 2014).

    Raises:
        UsageError: they are not here yet.
    """
    with tarfile.open(resource("vaderSentiment==2.5", _ARCHIVE)) as archive:
        member = archive.extractfile(f"hutto_ICWSM_2014/{kind}_GroundTruth.txt")
        assert member is not None
        rows = [line.split("\t") for line in member.read().decode(errors="replace").splitlines()]
    return [(float(rating), text) for _, rating, text in rows]


@cache
def load(kind: str) -> tuple[str, ...]:
    """The texts of a kind in random order, always the same. Raises UsageError where they are not here yet."""
    texts = rated(kind)
    return tuple(texts[i][1] for i in np.random.default_rng(0).permutation(len(texts)))


def encode(texts: tuple[str, ...], length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first characters of texts, and what follows each.

    Returns:
        x int32 [N, length] with 0 at first, y int32 [N, length], which is -1 where the text has ended.
    """
    numbers = {character: i for i, character in enumerate(ALPHABET)}
    x, y = np.zeros((len(texts), length), np.int32), np.full((len(texts), length), -1, np.int32)
    for row, text in enumerate(texts):
        found = [numbers.get(character, 1) for character in text.lower()[:length]]
        y[row, : len(found)] = found
        x[row, 1 : len(found)] = found[:-1]
    return x, y
