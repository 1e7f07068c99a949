"""State storage while a program trains (weights, slots, gradient accumulators): one class for each export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from converter.program.file import ProgramFile
from converter.runtime.interpreters.entry import ProgramEngine, SignatureEntry


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

    def remember(self, looks: bool) -> None:
        """Keeps what a step is about to change, where it is needed to take that step back.

        Args:
            looks: whether a step is to be taken back that could not be else.
        """

    def is_finite(self, entry: SignatureEntry, looks: bool) -> bool:
        """Return whether the state is that a call has made of the signature that updates.

        Args:
            entry: has been called.
            looks: whether to look at a state of which nothing is told; it is taken for finite otherwise.
        """

    def is_all_finite(self) -> bool:
        """Return whether all of the state is."""

    def take_back(self) -> bool:
        """Clears the accumulators; returns whether the state is that from before a step that was not kept."""

    def keep(self, entry: SignatureEntry, share: float = 1.0) -> None:
        """Takes over what a call has made: a new state, or gradients.

        Args:
            entry: has been called.
            share: of the weight of the step, of the rows whose gradients it gives.
        """


class Variables:
    """`variables`: the interpreter keeps the state, shared by all signatures.

    A step overwrites it. Where a program says that one can make it infinite, a copy is taken before each step, which
    lies in the outputs of `save`, and the step tells what came of it.
    """

    def __init__(self, program: ProgramFile, engine: ProgramEngine) -> None:
        self._program, self._engine = program, engine
        self._types = {t.tensor: np.dtype(t.dtype) for t in program.manifest.state_tensors}
        self._passed = {spec.name: np.dtype(spec.dtype) for spec in program.manifest.signatures["restore"].inputs}
        self._is_watched = bool(program.manifest.calls[program.manifest.updating].giving("finite"))
        self._before: dict[str, np.ndarray] = {}

    def read(self) -> dict[str, np.ndarray]:
        save = self._engine.entry("save")
        save.invoke()
        return self._saved()

    def write(self, tensors: Mapping[str, np.ndarray]) -> None:
        restore = self._engine.entry("restore")
        for name, dtype in self._passed.items():
            restore.write(name, np.ascontiguousarray(tensors[name]).view(dtype))
        restore.invoke()

    def remember(self, looks: bool) -> None:
        self._before = {}
        if self._is_watched:
            self._engine.entry("save").invoke()
        elif looks:
            self._before = self.read()

    def is_finite(self, entry: SignatureEntry, looks: bool) -> bool:
        if not self._is_watched:
            return not looks or self.is_all_finite()
        return all(np.isfinite(entry.output(spec.name)).all() for spec in entry.signature.giving("finite"))

    def is_all_finite(self) -> bool:
        save = self._engine.entry("save")
        save.invoke()
        return _are_finite(save, self._program)

    def take_back(self) -> bool:
        before = self._saved() if self._is_watched else self._before
        if before:
            self.write(before)
        return bool(before)

    def _saved(self) -> dict[str, np.ndarray]:
        """Return a copy of the state as it was when `save` was called."""
        save = self._engine.entry("save")
        return {name: save.output(name).copy().view(dtype) for name, dtype in self._types.items()}

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
        self._program, self._manifest = program, program.manifest
        self._home = engine.entry(program.manifest.updating)
        self._initial = {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
        taken = {spec.name for spec in self._home.signature.taking("state")}
        self._elsewhere = {name: array.copy() for name, array in self._initial.items() if name not in taken}
        self._seen: dict[str, set[str]] = {}  # by signature, the tensors whose copies are up to date
        # What the calls before the update change, as their number.
        early = program.manifest.calls[program.manifest.step]
        self._early = [] if early is self._home.signature else [spec.name for spec in early.giving("state")]
        self._before: dict[str, np.ndarray] = {}
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

    def remember(self, looks: bool) -> None:
        self._before = {name: self._at_home(name).copy() for name in self._early}

    def is_finite(self, entry: SignatureEntry, looks: bool) -> bool:
        return _are_finite(entry, self._program)

    def is_all_finite(self) -> bool:
        return True  # nothing else was taken over

    def take_back(self) -> bool:
        for name, array in self._before.items():
            self._put(name, array)
        self._clear_gradients()
        return True

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
            self._put(spec.name, entry.output(spec.name))
        if entry is self._home:
            self._clear_gradients()

    def _put(self, name: str, array: np.ndarray) -> None:
        """Replaces one tensor."""
        self._at_home(name)[...] = array
        for seen in self._seen.values():
            seen.discard(name)

    def _at_home(self, name: str) -> np.ndarray:
        """Return where a state tensor lives. Not to be kept."""
        own = self._elsewhere.get(name)
        return self._home.input(name) if own is None else own

    def _clear_gradients(self) -> None:
        """They belong to the state before."""
        for spec in self._home.signature.taking("gradient"):
            self._home.input(spec.name)[...] = 0


def _are_finite(entry: SignatureEntry, program: ProgramFile) -> bool:
    """Return whether the tensors of the state that a call has given are finite, but for those that begin infinite."""
    given = {spec.name: entry.output(spec.name) for spec in entry.signature.giving("state") if spec.dtype == "float32"}
    with np.errstate(over="ignore", invalid="ignore"):  # a sum is looked at more quickly than each number
        broken = {name for name, array in given.items() if not (np.isfinite(array.sum()) or np.isfinite(array).all())}
    return not any(np.isfinite(program.initial(t)).all() for t in program.manifest.state_tensors if t.tensor in broken)


def memory_of(program: ProgramFile, engine: ProgramEngine) -> Memory:
    """Return the state as the program's export keeps it, as built."""
    return Variables(program, engine) if program.manifest.state == "variables" else Arguments(program, engine)
