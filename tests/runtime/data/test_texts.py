"""Texts as rows: each token, its label and its text stand where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.runtime import packed_texts, rows_of_texts
from converter.support.errors import UsageError


def texts(seed: int, length: int, many: int = 17) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, length + 2, many)
    asked = [rng.random(size) < 0.6 for size in sizes]
    for one in asked:
        one[-1] = True
    return [rng.integers(1, 1000, size) for size in sizes], asked


def test_a_row_holds_a_text_and_labels_where_it_is_asked() -> None:
    ids, answers = texts(0, 12)
    x, y = rows_of_texts(ids, 12, answers)
    for row, (text, asked) in enumerate(zip(ids, answers, strict=True)):
        for place in range(12):
            inside = place < len(text) - 1
            assert x[row, place] == (text[place] if inside else 0)
            assert y[row, place] == (text[place + 1] if inside and asked[place + 1] else -1)
    whole, labels = rows_of_texts([[5, 6, 7]], 4)
    assert (whole.tolist(), labels.tolist()) == ([[5, 6, 0, 0]], [[6, 7, -1, -1]])


def test_texts_that_share_rows_stay_apart_and_are_all_there() -> None:
    ids, answers = texts(1, 20)
    (x, segments), y = packed_texts(ids, 20, answers)
    found = []
    for row in range(len(x)):
        runs = np.flatnonzero(np.diff(segments[row], prepend=0, append=0))
        numbers = [int(segments[row, start]) for start in runs[:-1] if segments[row, start]]
        assert numbers == list(range(1, len(numbers) + 1))
        for number in numbers:
            inside = segments[row] == number
            found.append((x[row, inside].tolist(), y[row, inside].tolist()))
        assert (y[row, segments[row] == 0] == -1).all()
    alone = [
        (text[:-1].tolist(), np.where(asked[1:], text[1:], -1).tolist())
        for text, asked in zip(ids, answers, strict=True)
    ]
    assert sorted(found) == sorted(alone)
    assert len(x) < len(ids)
    assert len(x) >= -(-sum(len(text) - 1 for text in ids) // 20)


@pytest.mark.parametrize("make", [rows_of_texts, packed_texts])
@pytest.mark.parametrize(
    ("ids", "answers", "said"),
    [
        ([], None, "no texts"),
        ([[1]], None, "two or more"),
        ([[1.0, 2.0]], None, "whole numbers"),
        ([[1, 2], list(range(10))], None, "text 1 has 10 tokens, and a row holds 8"),
        ([[1, 2]], [[True, False]], "text 0: no token is asked for"),
        ([[1, 2]], [[True]], "text 0 has 2 tokens, and its answers 1"),
        ([[1, 2]], [], "1 texts, and answers of 0"),
    ],
)
def test_what_is_no_row_is_refused(make: Any, ids: Any, answers: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(ids, 8, answers)
