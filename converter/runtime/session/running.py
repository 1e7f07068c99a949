"""Open program: its signatures, its state in memory, and whether that state is to be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

import numpy as np

from converter.program.file import ProgramFile
from converter.runtime.data.examples import Examples, check_whole
from converter.runtime.data.lengths import of_fewest_tokens
from converter.runtime.interpreters.entry import ProgramEngine, SignatureEntry
from converter.runtime.interpreters.memory import Memory, memory_of
from converter.runtime.session.diverged import refusal, spoilt
from converter.runtime.session.gradient_range import GradientRange
from converter.support.errors import NumericError, UsageError

#: What changes the state.
_STEPS = ("train", "accumulate", "gradients", "apply")
#: Beyond these a step may bring weights out of float32's range though nothing in it is infinite at finite numbers: only
#: then what it makes is looked at where that is a copy of all of the state.
_LARGE_RATE, _LARGE_LOSS = 1.0, 1e4


class Taken(NamedTuple):
    """What a step tells.

    Attributes:
        loss: of its rows before it, their mean by weight.
        rows: of each row, float32 [rows], NaN of those that were not run, as nothing beside them weighs something; of a
            program that does not give it, of no row.
    """

    loss: float
    rows: np.ndarray


class Running:
    """What a session holds while it is open; it is called by one thread at a time.

    Attributes:
        memory: the state.
    """

    def __init__(self, program: ProgramFile, engine: ProgramEngine) -> None:
        self._manifest = program.manifest
        self._engine = engine
        self.memory: Memory = memory_of(program, engine)
        self._range = GradientRange(program.manifest)
        self._lost = False
        self._half_done = False
        self._last = 0.0  # the size of the last loss

    def ready(self, signature: str) -> SignatureEntry:
        """Return a signature that sees the state. Raises NumericError where a step has spoilt it."""
        self.check_not_lost()
        entry = self._engine.entry(signature)
        self.memory.lend(entry)
        return entry

    def check_not_lost(self) -> None:
        """Raises NumericError after a loss that was not finite, of a step that could not be taken back."""
        if self._lost:
            raise NumericError(
                "the weights are not to be trusted since a loss was not finite: restore() or reset() first"
            )

    def check_finite(self) -> None:
        """Raises NumericError where a step has left something behind that is not finite, and could not say so."""
        if not self.memory.is_all_finite():
            self._lost = True
            raise spoilt(self._manifest)

    def take(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Another state in the place of this one."""
        self.memory.write(tensors)
        self._lost = False

    def reset(self) -> None:
        """The state that was built in the place of this one."""
        self.memory.reset()
        self._lost = False

    def step(self, examples: Examples, rate: float, signature: str) -> Taken:
        """Run one step on checked rows.

        Raises:
            NumericError: that is not finite, or something that the step writes; or a gradient is beyond what its engine
                can count.
        """
        self.check_not_lost()
        looks = rate > _LARGE_RATE or self._last > _LARGE_LOSS
        self.memory.remember(looks)
        if self._manifest.updating == "apply":
            loss, rows = self._add_up(examples, signature)
            updated = self._call("apply", rate=rate) if isfinite(loss) else None
        else:
            updated = self._call(signature, examples, rate)
            loss, rows = float(updated.output("loss")[0]), _of_rows(updated, examples.rows)
        looks |= abs(loss) > _LARGE_LOSS
        if updated is None or not isfinite(loss) or not self.memory.is_finite(updated, looks):
            self._lost = not (self.memory.take_back() or updated is None)
            raise refusal(self._manifest, loss, rate, not self._lost)
        self.memory.keep(updated)
        self._half_done, self._last = False, abs(loss)
        return Taken(loss, rows)

    def call(self, signature: str, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a signature that leaves the state as it is, and return copies of the outputs of the model.

        Raises:
            UsageError: the program has no such signature.
        """
        known = [name for name in self._manifest.calls if name not in _STEPS]
        if signature not in known:
            raise UsageError(
                f"{self._manifest.name} has no signature {signature!r} that leaves the state as it is, only "
                f"{', '.join(known) or 'steps'}",
                page="sessions",
            )
        entry = self.ready(signature)
        for name, array in feed.items():
            entry.write(name, array)
        entry.invoke()
        return {spec.name: entry.output(spec.name).copy() for spec in entry.signature.giving("output")}

    def _add_up(self, examples: Examples, signature: str) -> Taken:
        """Adds up the gradients of the parts; the loss is that of all rows, or the first that is not finite."""
        if self._half_done:  # a step that ended before its update left gradients behind
            self.memory.write(self.memory.read())
        self._half_done = True
        # `accumulate` gives the part's share of the loss and its gradient, `gradients` those of its own mean.
        means = self._manifest.state == "split"
        rows, total, loss = examples if means else examples.as_shares(), examples.weight, 0.0
        by_row, size = np.full(examples.rows, np.nan, np.float32), self._manifest.micro_batch
        for start in range(0, examples.rows, size):
            part = rows.take(slice(start, start + size))
            if not part.weight:
                continue
            entry = self._call(signature, part)
            found = _of_rows(entry, part.rows)
            by_row[start : start + len(found)] = found
            share = part.weight / total if means else 1.0
            loss += share * float(entry.output("loss")[0])
            if not isfinite(loss):
                break
            if means:
                self._range.check(entry)
            self.memory.keep(entry, share)
        return Taken(loss, by_row)

    def _call(self, signature: str, examples: Examples | None = None, rate: float | None = None) -> SignatureEntry:
        """Runs a signature on rows, a learning rate, or both."""
        if examples is not None:
            signature, examples = of_fewest_tokens(self._manifest, signature, examples)
        entry = self.ready(signature)
        if examples is not None:
            check_whole(signature, entry.signature, examples.rows)
            examples.fill(entry)
        if rate is not None:
            entry.write("learning_rate", np.array([rate], np.float32))
        entry.invoke()
        return entry


def _of_rows(entry: SignatureEntry, rows: int) -> np.ndarray:
    """Return the loss of each of the rows of a call, float32 [rows]; of none where it is not given."""
    given = [entry.output(spec.name)[:rows].copy() for spec in entry.signature.giving("row_losses")]
    return given[0] if given else np.zeros(0, np.float32)
