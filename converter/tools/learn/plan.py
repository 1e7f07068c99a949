"""What is to be learned, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Plan:
    """What is to be learned, and how: the arguments of `learn`."""

    base: Path
    examples: Path
    out: Path
    held_out: Path | None
    length: int | None
    epochs: int
    learning_rate: float
    update: str | Mapping[str, Any]
    frozen: str
    rehearse: bool
    keep_base: float
    asked: int
    asks: tuple[str, ...]
    every: float
    seed: int


@dataclass(frozen=True)
class Learned:
    """What became of it.

    Attributes:
        perplexity: of the held-out answers, before and after.
        answers: question, wanted answer, and what was said before and after.
        others: what was asked and not taught, and what was said before and after.
        steps: that were made.
        state: the file of the last one, which goes with the program.
        program: that trained.
    """

    perplexity: tuple[float, float]
    answers: tuple[tuple[str, str, str, str], ...]
    others: tuple[tuple[str, str, str], ...]
    steps: int
    state: Path
    program: Path
