"""State storage while a program trains (weights, slots, gradient accumulators): one class for each export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from converter.program.file import ProgramFile
from converter.runtime.entry import ProgramEngine, SignatureEntry


class Memory(Protocol):
    """The state of a session."""

    def read(self) -> dict[str, np.ndarray]:
        """Return a copy of every state tensor, in the order of the manifest."""

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Replaces all of it and clears the accumulators."""

    def reset(self) -> None:
        """Back to what was built, the accumulators cleared."""

    def lend(self, entry: SignatureEntry) -> None:
        """Makes the state visible to a signature that is about to read it."""

    def keep(self, entry: SignatureEntry, share: float = 1.0) -> None:
        """Takes over what a call has made: a new state, or gradients.

        Args:
            entry: has been called.
            share: of the weight of the step, of the rows whose gradients it gives.
        """


class Variables:
    """`variables`: the interpreter keeps the state, shared by all signatures."""

    def __init__(self, program: ProgramFile, engine: ProgramEngine) -> None:
        self._engine = engine
        self._names = [t.tensor for t in program.manifest.state_tensors]

    def read(self) -> dict[str, np.ndarray]:
        save = self._engine.entry("save")
        save.invoke()
        return {name: save.output(name).copy() for name in self._names}

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        restore = self._engine.entry("restore")
        for name in self._names:
            restore.write(name, tensors[name])
        restore.invoke()

    def reset(self) -> None:
        self._engine.entry("initialize").invoke()

    def lend(self, entry: SignatureEntry) -> None:
        pass

    def keep(self, entry: SignatureEntry, share: float = 1.0) -> None:
        pass


class Arguments:
    """`stateless`, `split`: the state, and sums of gradients, live in the inputs of the signature that updates.

    What that does not take has a place of its own. Other signatures are given a copy of each tensor once after it has
    changed, and of the accumulators at each call.
    """

    def __init__(self, program: ProgramFile, engine: ProgramEngine) -> None:
        self._manifest = program.manifest
        self._home = engine.entry(program.manifest.updating)
        self._initial = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
        taken = {spec.name for spec in self._home.signature.taking("state")}
        self._elsewhere = {name: array.copy() for name, array in self._initial.items() if name not in taken}
        self._seen: dict[str, set[str]] = {}  # by signature, the tensors whose copies are up to date
        self.reset()

    def read(self) -> dict[str, np.ndarray]:
        return {name: self._at_home(name).copy() for name in self._initial}

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        for name in self._initial:
            self._at_home(name)[...] = tensors[name]
        self._seen.clear()
        self._clear_gradients()

    def reset(self) -> None:
        self.write(self._initial)

    def lend(self, entry: SignatureEntry) -> None:
        if entry is self._home:
            return
        seen = self._seen.setdefault(entry.name, set())
        for spec in entry.signature.taking("state"):
            if spec.name not in seen:
                entry.write(spec.name, self._at_home(spec.name))
                seen.add(spec.name)
        for spec in entry.signature.taking("gradient"):
            entry.write(spec.name, self._home.input(spec.name))

    def keep(self, entry: SignatureEntry, share: float = 1.0) -> None:
        for spec in entry.signature.giving("gradient"):
            if self._manifest.state == "split":
                self._home.input(spec.name)[...] += np.float32(share) * entry.output(spec.name)
            else:  # it has been given the sum, and has added to it
                self._home.input(spec.name)[...] = entry.output(spec.name)
        try:
            self._take_state(entry)
        except KeyboardInterrupt:  # a step is done whole or not at all: what it gave is still there
            self._take_state(entry)
            raise

    def _take_state(self, entry: SignatureEntry) -> None:
        for spec in entry.signature.giving("state"):
            self._at_home(spec.name)[...] = entry.output(spec.name)
            for seen in self._seen.values():
                seen.discard(spec.name)
        if entry is self._home:
            self._clear_gradients()

    def _at_home(self, name: str) -> np.ndarray:
        """Return where a state tensor lives. Not to be kept."""
        own = self._elsewhere.get(name)
        return self._home.input(name) if own is None else own

    def _clear_gradients(self) -> None:
        """They belong to the state before."""
        for spec in self._home.signature.taking("gradient"):
            self._home.input(spec.name)[...] = 0


def memory_of(program: ProgramFile, engine: ProgramEngine) -> Memory:
    """Return the state as the program's export keeps it, as built."""
    return Variables(program, engine) if program.manifest.state == "variables" else Arguments(program, engine)
