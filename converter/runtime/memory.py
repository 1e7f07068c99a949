"""Where the state of a program lives while it trains: one class for each export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np

from converter.program_file import ProgramFile
from converter.runtime.entry import Engine, Entry


class Memory(Protocol):
    """The state of a session."""

    def read(self) -> dict[str, np.ndarray]:
        """A copy of every state tensor, in the order of the manifest."""

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Replaces all of it and clears the accumulators."""

    def reset(self) -> None:
        """Back to what was built, the accumulators cleared."""

    def lend(self, entry: Entry) -> None:
        """Makes the state visible to a signature that is about to read it."""

    def keep(self, entry: Entry) -> None:
        """Takes over what a call has made: a new state, or accumulated gradients."""


class Variables:
    """`variables`: the interpreter keeps the state, shared by all signatures."""

    def __init__(self, program: ProgramFile, engine: Engine) -> None:
        self._engine = engine
        self._names = [t.tensor for t in program.manifest.state_tensors]

    def read(self) -> dict[str, np.ndarray]:
        save = self._engine.entry("save")
        save.invoke()
        return {name: save.output(name).copy() for name in self._names}

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        restore = self._engine.entry("restore")
        for name in self._names:
            restore.input(name)[...] = tensors[name]
        restore.invoke()

    def reset(self) -> None:
        self._engine.entry("initialize").invoke()

    def lend(self, entry: Entry) -> None:
        pass

    def keep(self, entry: Entry) -> None:
        pass


class Arguments:
    """`stateless`: the state, and the accumulators, live in the inputs of the signature that updates.

    Its outputs are the next state. Other signatures are given a copy of the state once after each change, and of the
    accumulators at each call.
    """

    def __init__(self, program: ProgramFile, engine: Engine) -> None:
        self._home = engine.entry(program.manifest.updating)
        self._initial = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
        self._up_to_date: set[str] = set()
        self.reset()

    def read(self) -> dict[str, np.ndarray]:
        return {name: self._home.input(name).copy() for name in self._initial}

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        for name in self._initial:
            self._home.input(name)[...] = tensors[name]
        self._state_changed()

    def reset(self) -> None:
        self.write(self._initial)

    def lend(self, entry: Entry) -> None:
        if entry is self._home:
            return
        if entry.name not in self._up_to_date:
            self._copy(entry, "state")
            self._up_to_date.add(entry.name)
        self._copy(entry, "gradient")

    def keep(self, entry: Entry) -> None:
        for spec in (*entry.signature.giving("state"), *entry.signature.giving("gradient")):
            self._home.input(spec.name)[...] = entry.output(spec.name)
        if entry.signature.giving("state"):
            self._state_changed()

    def _copy(self, entry: Entry, role: Literal["state", "gradient"]) -> None:
        for spec in entry.signature.taking(role):
            entry.input(spec.name)[...] = self._home.input(spec.name)

    def _state_changed(self) -> None:
        """The copies are old, and what was accumulated for the state before is of no use."""
        self._up_to_date.clear()
        for spec in self._home.signature.taking("gradient"):
            self._home.input(spec.name)[...] = 0


def memory_of(program: ProgramFile, engine: Engine) -> Memory:
    """The state as the program's export keeps it, as built."""
    return Variables(program, engine) if program.manifest.state == "variables" else Arguments(program, engine)
