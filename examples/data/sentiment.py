"""Sentences of film reviews and how twenty readers found them (Hutto and Gilbert, ICWSM 2014)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from examples.data.writings import rated


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
    chosen = [(text, rating > 0) for rating, text in rated("movieReviewSnippets") if abs(rating) >= clear]
    order = np.random.default_rng(0).permutation(len(chosen))
    return Texts(tuple(chosen[i][0] for i in order), np.array([chosen[i][1] for i in order], np.int32))
