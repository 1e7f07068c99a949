"""Where the state of a program lives while it trains: one class for each export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from converter.program_file import ProgramFile
from converter.runtime.engine import Engine, Entry


class Memory(Protocol):
    """The state of a session."""

    def read(self) -> dict[str, np.ndarray]:
        """A copy of every state tensor, in the order of the manifest."""

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Replaces all of it."""

    def reset(self) -> None:
        """Back to what was built."""

    def lend(self, entry: Entry) -> None:
        """Makes the state visible to a signature that is about to read it."""

    def keep(self, entry: Entry) -> None:
        """Takes over the state that a training step has made."""


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
    """`stateless`: the state lives in the inputs of `train`, whose outputs are the next one.

    Other signatures are given a copy, once after each change.
    """

    def __init__(self, program: ProgramFile, engine: Engine) -> None:
        self._train = engine.entry("train")
        self._initial = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
        self._up_to_date: set[str] = set()
        self.reset()

    def read(self) -> dict[str, np.ndarray]:
        return {name: self._train.input(name).copy() for name in self._initial}

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        for name in self._initial:
            self._train.input(name)[...] = tensors[name]
        self._up_to_date.clear()

    def reset(self) -> None:
        self.write(self._initial)

    def lend(self, entry: Entry) -> None:
        if entry.name not in self._up_to_date and entry is not self._train:
            for spec in entry.signature.taking("state"):
                entry.input(spec.name)[...] = self._train.input(spec.name)
            self._up_to_date.add(entry.name)

    def keep(self, entry: Entry) -> None:
        for spec in entry.signature.giving("state"):
            self._train.input(spec.name)[...] = entry.output(spec.name)
        self._up_to_date.clear()


def memory_of(program: ProgramFile, engine: Engine) -> Memory:
    """The state as the program's export keeps it, as built."""
    return Variables(program, engine) if program.manifest.state == "variables" else Arguments(program, engine)
