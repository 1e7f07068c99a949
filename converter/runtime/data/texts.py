"""Texts as rows of a language model's program: the next token of each, answers alone, several texts in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from converter.support.errors import UsageError

#: A label that no loss counts.
NOT_ASKED = -1


def rows_of_texts(
    texts: Sequence[Any], length: int, answers: Sequence[Any] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of texts, a row for each: ids int32 [texts, length], and the token that follows each.

    A shorter text is padded on the right; y is -1 there, and `next_token` leaves it out.

    Args:
        texts: the token ids of each.
        length: tokens of a row; a text may have one more, whose last is only asked for.
        answers: for each text, of which tokens a loss is taken, bool [tokens]; None: of all.

    Raises:
        UsageError: a text has fewer than two tokens or is longer than a row, no token of it is asked for, or answers
            are not as long as their texts.
    """
    found = _checked(texts, length, answers)
    x, y = np.zeros((len(found), length), np.int32), np.full((len(found), length), NOT_ASKED, np.int32)
    for row, (ids, labels) in enumerate(found):
        x[row, : ids.size], y[row, : ids.size] = ids, labels
    return x, y


def packed_texts(
    texts: Sequence[Any], length: int, answers: Sequence[Any] | None = None
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return x and y of texts that share rows: ids, the number of the text of each token, and the token that follows.

    The longest texts come first, each into the first row that has room for it. All are int32 [rows, length]; the second
    part of x is what a `pocketune.LanguageModel(packed=True)` takes, and 0 where a row is empty.

    Args, Raises: as `rows_of_texts`.
    """
    found = _checked(texts, length, answers)
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(found)), key=lambda i: -found[i][0].size):
        size = found[number][0].size
        place = next((row for row, left in enumerate(room) if left >= size), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(length)
        rows[place].append(number)
        room[place] -= size
    ids, segments = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), np.int32)
    y = np.full((len(rows), length), NOT_ASKED, np.int32)
    for row, numbers in enumerate(rows):
        start = 0
        for text, number in enumerate(numbers, 1):
            part, labels = found[number]
            end = start + part.size
            ids[row, start:end], y[row, start:end], segments[row, start:end] = part, labels, text
            start = end
    return (ids, segments), y


def _checked(texts: Sequence[Any], length: int, answers: Sequence[Any] | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each text what a row takes of it, and the labels there."""
    if type(length) is not int or length < 1:
        raise UsageError(f"length is the number of tokens of a row, 1 or more, not {length!r}", page="sessions")
    if not len(texts):
        raise UsageError("there are no texts", page="sessions")
    if answers is not None and len(answers) != len(texts):
        raise UsageError(f"{len(texts)} texts, and answers of {len(answers)}", page="sessions")
    found = []
    for number, text in enumerate(texts):
        ids = np.asarray(text)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.size < 2:
            raise UsageError(f"text {number}: token ids are a list of two or more whole numbers", page="sessions")
        if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
            raise UsageError(f"text {number}: {ids.min()} to {ids.max()} are no token ids", page="sessions")
        if ids.size > length + 1:
            raise UsageError(
                f"text {number} has {ids.size} tokens, and a row holds {length} and the one after them: cut it into "
                "parts, or build the program with a larger length",
                page="sessions",
            )
        asked = np.ones(ids.size, bool) if answers is None else np.asarray(answers[number], bool)
        if asked.shape != ids.shape:
            raise UsageError(f"text {number} has {ids.size} tokens, and its answers {asked.size}", page="sessions")
        if not asked[1:].any():
            raise UsageError(f"text {number}: no token is asked for", page="sessions")
        found.append((ids[:-1].astype(np.int32), np.where(asked[1:], ids[1:], NOT_ASKED).astype(np.int32)))
    return found
