"""Evaluation of a language model: perplexity of rows, and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.runtime import TrainingSession, generate
from converter.runtime.data.texts import NOT_ASKED
from converter.tools.learn.examples import Example

if TYPE_CHECKING:
    from converter.frontends.decoder import Tokenizer

#: Tokens of an answer, at most.
_MOST = 32


@dataclass(frozen=True)
class Asker:
    """A model that is asked.

    Attributes:
        session: with the weights of the moment.
        tokenizer: of the model.
        length: tokens of a row, which question and answer share.
        before: messages before a question of its own, as the examples have them.
    """

    session: TrainingSession
    tokenizer: Tokenizer
    length: int
    before: tuple[Mapping[str, Any], ...] = ()

    def perplexity(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return e to the mean loss of the tokens that are asked for: of one row the loss is the mean of its tokens."""
        tokens = (y != NOT_ASKED).sum(1)
        losses = [self.session.evaluate(x[i : i + 1], y[i : i + 1])["loss"] for i in range(len(x))]
        return float(np.exp(np.average(losses, weights=tokens)))

    def answer(self, example: Example) -> str:
        """Return what the model answers to an example."""
        if self.tokenizer.has_template:
            return self._written(self.tokenizer.prompt(example.asked, **example.options))
        return self._written(self.tokenizer.encode(example.question, begins=True))

    def own(self, question: str) -> str:
        """Return what the model answers to a question; nothing where that has no room in a row."""
        if self.tokenizer.has_template:
            return self._written(self.tokenizer.prompt(self.talk(question)))
        return self._written(self.tokenizer.encode(question, begins=True))

    def talk(self, question: str, answer: str | None = None) -> list[Mapping[str, Any]]:
        """Return the messages of a question, and of its answer."""
        said = [] if answer is None else [{"role": "assistant", "content": answer}]
        return [*self.before, {"role": "user", "content": question}, *said]

    def _written(self, prompt: Sequence[int]) -> str:
        room = min(self.length - len(prompt), _MOST)
        if room < 1 or not prompt:
            return ""
        ids = generate(self.session, list(prompt), most=room, temperature=0, stop=self.tokenizer.ends)
        return self.tokenizer.decode(list(ids)).strip()
