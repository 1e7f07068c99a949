"""What is to be learned, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Plan:
    """What is to be learned, and how.

    Attributes:
        base: a `.gguf` file or a folder of `transformers`.
        examples: a `.jsonl` file.
        out: where the adapter goes: a folder for PEFT, or a `.gguf` file for llama.cpp.
        held_out: a file of other examples to judge by; None: every tenth of the examples, of fewer than five all.
        length: tokens of a row; None: as many as the longest example has, 512 at most.
        epochs: how often each example is seen.
        learning_rate: of the first step; it falls to a tenth in a line.
        update: which weights have adapters: a name of a scheme, or rules of `LoRA`.
        frozen: what the others are stored as.
        rehearse: whether the model's own answers to a few general questions are learned between the examples.
        asked: how many of the held-out questions are answered before and after.
        asks: other questions that are answered before and after and not taught: what it knew should stay.
        every: seconds between checkpoints.
        seed: of the order.
    """

    base: Path
    examples: Path
    out: Path
    held_out: Path | None = None
    length: int | None = None
    epochs: int = 3
    learning_rate: float = 2e-4
    update: str | Mapping[str, Any] = "lora-8:all-linear"
    frozen: str = "int4-blockwise"
    rehearse: bool = True
    asked: int = 3
    asks: tuple[str, ...] = ()
    every: float = 120.0
    seed: int = 0


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
