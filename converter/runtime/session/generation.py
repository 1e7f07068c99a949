"""Text generation: a language model writes token ids on, with the keys and values of the tokens before kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from converter.program.manifest import Signature
from converter.runtime.session.session import TrainingSession
from converter.support.errors import NumericError, UsageError

_PREFILL, _DECODE = "prefill", "decode"


def generate(
    session: TrainingSession,
    ids: Sequence[int],
    most: int = 64,
    stop: Collection[int] = (),
    temperature: float = 0.0,
    top_k: int = 40,
    top_p: float = 0.95,
    seed: int | None = None,
) -> Iterator[int]:
    """Yield the token ids that a session's model writes after others, one by one, with its weights as they are now.

    Training between two tokens is not seen by what was read before.

    Args:
        session: of a program with the signature `generate`.
        ids: token ids of the text to be written on, one or more.
        most: how many to write at most; it also ends where the rows of the program do.
        stop: ids at which it ends; they are not given.
        temperature: 0 takes the likeliest token; more draws among all, by their logits divided by it.
        top_k: draws among so many of the likeliest tokens.
        top_p: and of these among the fewest whose probabilities add up to it.
        seed: of the draws; None: another one each time.

    Raises:
        UsageError: the program cannot generate, there are no ids or more than its rows hold, or an id is none of its
            vocabulary.
        NumericError: while tokens are asked for, where logits are not finite.
    """
    text = _Text(session)
    choose = _Choice(temperature, top_k, top_p, seed)
    prompt = text.checked(ids)
    return _written(text, prompt, choose, most, frozenset(stop))


def _written(text: _Text, prompt: np.ndarray, choose: _Choice, most: int, stop: frozenset[int]) -> Iterator[int]:
    logits = text.read(prompt)
    for number in range(min(most, text.length - prompt.size + 1)):
        token = choose(logits)
        if token in stop:
            return
        yield token
        if number + 1 < most and text.position < text.length:
            logits = text.read(np.array([token], np.int32))


class _Text:
    """A text that is read: the keys and values of its tokens."""

    def __init__(self, session: TrainingSession) -> None:
        signatures = session.manifest.signatures
        if _DECODE not in signatures or _PREFILL not in signatures:
            raise UsageError(
                f"{session.manifest.name} cannot generate: build it with the signature, "
                "signatures=('train', 'infer', 'generate')",
                page="sessions",
            )
        self._session = session
        self._sizes = {name: _input(signatures[name], "ids")[1] for name in (_PREFILL, _DECODE)}
        kept = _input(signatures[_DECODE], "kept_keys")
        self.length, self.position = kept[3], 0
        self._keys, self._values = np.zeros(kept, np.float32), np.zeros(kept, np.float32)

    def checked(self, ids: Any) -> np.ndarray:
        """Return the ids of a prompt, int32 [tokens]."""
        prompt = np.asarray(ids)
        if prompt.ndim != 1 or not prompt.size or prompt.dtype.kind not in "iu":
            raise UsageError("the ids to continue must be a list of one or more whole numbers", page="sessions")
        if prompt.size > self.length:
            raise UsageError(
                f"{prompt.size} tokens are too many to continue: a row of this program holds {self.length}; build it "
                "with a larger length, or leave tokens out",
                page="sessions",
            )
        words = next(iter(self._session.manifest.target_labels.values())).count
        if words is not None and (prompt.min() < 0 or prompt.max() >= words):
            raise UsageError(
                f"ids are numbers from 0 to {words - 1}, got {prompt.min()} to {prompt.max()}: the tokenizer is that "
                "of another model",
                page="sessions",
            )
        return prompt.astype(np.int32)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Read tokens after the others; return the logits [vocabulary] of the one that follows them."""
        logits = np.empty(0)
        start = 0
        while start < ids.size:
            name = _DECODE if ids.size - start == 1 else _PREFILL
            part = ids[start : start + self._sizes[name]]
            logits = self._call(name, part)
            start += part.size
        return logits

    def _call(self, name: str, ids: np.ndarray) -> np.ndarray:
        padded = np.zeros((1, self._sizes[name]), np.int32)
        padded[0, : ids.size] = ids
        feed = {
            "ids": padded,
            "position": np.array([self.position], np.int32),
            "count": np.array([ids.size], np.int32),
            "kept_keys": self._keys,
            "kept_values": self._values,
        }
        found = self._session.call(name, feed)
        end = self.position + ids.size
        self._keys[:, :, :, self.position : end] = found["keys"][:, :, :, : ids.size]
        self._values[:, :, :, self.position : end] = found["values"][:, :, :, : ids.size]
        self.position = end
        return found["logits"][0]


def _input(signature: Signature, name: str) -> tuple[int, ...]:
    """Return the shape of an input."""
    found = [spec.shape for spec in signature.inputs if spec.name == name]
    if not found:
        raise UsageError(f"the program's signatures for generation take no {name}", page="sessions")
    return found[0]


class _Choice:
    """Chooses a token by its logits."""

    def __init__(self, temperature: float, top_k: int, top_p: float, seed: int | None) -> None:
        if not temperature >= 0 or top_k < 1 or not 0 < top_p <= 1:
            raise UsageError(
                "temperature is 0 or more, top_k 1 or more and top_p above 0 and at most 1, not "
                f"{temperature}, {top_k} and {top_p}",
                page="sessions",
            )
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p
        self._rng = np.random.default_rng(seed)

    def __call__(self, logits: np.ndarray) -> int:
        """Return the id of one. Raises NumericError for logits that are not finite."""
        if not np.isfinite(logits).all():
            raise NumericError(
                "the logits of the next token are not finite: the weights are too large since a step, restore() or "
                "reset() and train with a lower learning rate"
            )
        if self._temperature == 0:
            return int(logits.argmax())
        among = np.argsort(-logits, kind="stable")[: self._top_k]
        weights = np.exp((logits[among].astype(np.float64) - logits[among[0]]) / self._temperature)
        shares = weights / weights.sum()
        few = int(np.searchsorted(np.cumsum(shares), self._top_p)) + 1
        shares = shares[:few] / shares[:few].sum()
        return int(self._rng.choice(among[:few], p=shares))
