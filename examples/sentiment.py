"""Sentences of film reviews and how twenty readers found them (Hutto and Gilbert, ICWSM 2014)."""

from __future__ import annotations

import tarfile
from functools import cache
from typing import NamedTuple

import numpy as np

from examples.packages import resource

_ARCHIVE = "vaderSentiment-2.5/additional_resources/hutto_ICWSM_2014.tar.gz"
_TABLE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


class Texts(NamedTuple):
    """Sentences, and 1 for a friendly, 0 for an unfriendly one, int32 [N], in random order."""

    texts: tuple[str, ...]
    y: np.ndarray


@cache
def load(clear: float = 1.0) -> Texts:
    """The sentences that the readers agreed on; always in the same order.

    Args:
        clear: their mean rating, from -4 to 4, is at least as far from 0.

    Raises:
        UsageError: they are not here yet.
    """
    with tarfile.open(resource("vaderSentiment==2.5", _ARCHIVE)) as archive:
        member = archive.extractfile(_TABLE)
        assert member is not None
        rows = [line.split("\t") for line in member.read().decode().splitlines()]
    chosen = [(text, float(rating) > 0) for _, rating, text in rows if abs(float(rating)) >= clear]
    order = np.random.default_rng(0).permutation(len(chosen))
    return Texts(tuple(chosen[i][0] for i in order), np.array([chosen[i][1] for i in order], np.int32))
