"""BERT's tokens: words in lower case without accents, cut into the longest pieces that the vocabulary has."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

_LONGEST_WORD = 100


class WordPiece:
    """Texts to ids.

    Args:
        vocabulary: the pieces in the order of their ids; those that go on with a word begin with "##".
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: index for index, piece in enumerate(vocabulary)}

    @classmethod
    def read(cls, path: Path) -> WordPiece:
        """From a file with one piece a line."""
        return cls(path.read_text(encoding="utf-8").split("\n"))

    def encode(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Ids int32 [N, length]: [CLS], the pieces as far as there is room, [SEP], and [PAD] up to the length."""
        ids = np.full((len(texts), length), self._ids["[PAD]"], np.int32)
        for row, text in zip(ids, texts, strict=True):
            pieces = [piece for word in _words(text) for piece in self._pieces(word)]
            full = ["[CLS]", *pieces[: length - 2], "[SEP]"]
            row[: len(full)] = [self._ids[piece] for piece in full]
        return ids

    def _pieces(self, word: str) -> list[str]:
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._ids), None)
            if end is None or len(word) > _LONGEST_WORD:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


def _words(text: str) -> Iterator[str]:
    """Words, and each mark of punctuation and each Chinese character on its own."""
    word = ""
    for character in unicodedata.normalize("NFD", "".join(map(_cleaned, text)).lower()):
        category = unicodedata.category(character)
        if category == "Mn":  # an accent
            continue
        alone = _is_punctuation(character, category) or _is_chinese(character)
        if (alone or character.isspace()) and word:
            yield word
            word = ""
        if alone:
            yield character
        elif not character.isspace():
            word += character
    if word:
        yield word


def _cleaned(character: str) -> str:
    """Control characters vanish, all kinds of white space are one."""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    return "" if character in "\0\ufffd" or unicodedata.category(character).startswith("C") else character


def _is_punctuation(character: str, category: str) -> bool:
    return category.startswith("P") or (
        character.isascii() and character.isprintable() and not character.isalnum() and not character.isspace()
    )


def _is_chinese(character: str) -> bool:
    ranges = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
    return any(low <= ord(character) <= high for low, high in ranges)
