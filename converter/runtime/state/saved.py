"""Saved states: two generations of a file, and the tensors that a program restores (docs/state-file.md)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from converter.program.checksum import STATE
from converter.runtime.state.interchange import UNPROVEN, StateSpec, carried, differences, is_proven, with_layouts
from converter.runtime.state.state_file import DamagedState, ForeignState, State, pack, unpack
from converter.support.errors import PocketuneError, UsageError
from converter.support.files import beside, check_regular, write_atomically


class StateWarning(UserWarning):
    """The newest state could not be used and an older one was, or what was taken over does not say all of itself."""


@dataclass(frozen=True)
class Compared:
    """A state beside a program.

    Attributes:
        tensors: those that match, as the program stores them.
        adopted: their names.
        left: those of the program that match none.
        differences: between the state's program and this one, in words; none where the state goes on there.
        proven: whether all was compared.
        has_weights: whether more than slots of the optimizer match.
        flaw: why a state without differences is none of the program all the same; None where it is one.
    """

    tensors: dict[str, np.ndarray]
    adopted: tuple[str, ...]
    left: tuple[str, ...]
    differences: tuple[str, ...]
    proven: bool
    has_weights: bool
    flaw: str | None

    def refusal(self, adopting: bool = False) -> UsageError | None:
        """Return why the program does not take the state; None where it does.

        Args:
            adopting: whether what matches is taken over from the state of another program.
        """
        if self.differences and not adopting:
            return _of_another(self.differences)
        if self.flaw is not None:
            return DamagedState(self.flaw)
        if not self.has_weights:
            return ForeignState(f"no weight of it matches one of this program: {'; '.join(self.differences)}")
        return None


@dataclass(frozen=True)
class Restored:
    """What was taken from a state file.

    Attributes:
        program: graph hash of the program that the state belongs to.
        generation: of the state.
        adopted: the names of the tensors that were taken over.
        left: those of the program that are as built; none without `adopt`.
        differences: between the state's program and this one, in words.
    """

    program: str
    generation: int
    adopted: tuple[str, ...]
    left: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def previous_of(path: str | os.PathLike) -> Path:
    """Return where the older generation of a state file is kept."""
    return beside(path, "previous")


def save_state(
    path: str | os.PathLike, spec: StateSpec, tensors: Mapping[str, np.ndarray], replacing: Collection[str] = ()
) -> int:
    """Writes the next generation; the one before stays as `<path>.previous`.

    Args:
        path: the state file.
        spec: what the program takes.
        tensors: by name, in the order of the manifest.
        replacing: graph hashes of other programs whose states may be overwritten.

    Returns:
        The generation written.

    Raises:
        NumericError: a tensor is not finite; the files stay as they were.
        UsageError: the file cannot be written, or `path` holds something that is not a state of this program.
    """
    path = Path(path)
    newest, older = _attempt(path, spec, replacing), _attempt(previous_of(path), spec, replacing)
    if isinstance(newest, ForeignState):
        raise UsageError(f"{path} is not overwritten: {newest}", page="state-files")
    if isinstance(newest, DamagedState) and not isinstance(older, State) and not _is_ours(path):
        raise UsageError(f"{path} is not overwritten: {newest}", page="state-files")
    generation = 1 + max((s.generation for s in (newest, older) if isinstance(s, State)), default=0)
    data = pack(State(spec, generation, dict(tensors)))
    # A damaged file must not take the place of a good older one.
    write_atomically(path, data, previous=previous_of(path) if isinstance(newest, State) else None)
    return generation


def load_state(path: str | os.PathLike) -> State:
    """Reads the newest good generation, of whatever program; a `StateWarning` says when that is the older one.

    Raises:
        UsageError: there is none, or neither is good.
    """
    return _newest(Path(path), _attempt)


def restore_state(
    path: str | os.PathLike, spec: StateSpec, adopt: str | None = None
) -> tuple[dict[str, np.ndarray], Restored]:
    """Return the newest good generation as a program takes it; a `StateWarning` says what is not as it should be.

    Args:
        path: the state file.
        spec: what the program takes.
        adopt: `matching` takes what matches by name and shape of a state of another program.

    Returns:
        The tensors, all of the program's where `adopt` is None, and what was taken.

    Raises:
        UsageError: there is none, neither is good, it belongs to another program, or nothing matches.
    """
    if adopt not in (None, "matching"):
        raise UsageError(f"adopt is None or 'matching', not {adopt!r}", page="state-files")
    state = _newest(Path(path), _attempt if adopt else partial(_attempt, spec=spec))
    found = compared(state, spec)
    if refusal := found.refusal(adopting=adopt is not None):
        raise type(refusal)(f"{os.fspath(path)}: {refusal}")
    if not found.differences and not found.proven:
        warnings.warn(f"{os.fspath(path)}: {UNPROVEN}", StateWarning, stacklevel=3)
    return found.tensors, Restored(state.spec.program, state.generation, found.adopted, found.left, found.differences)


def compared(state: State, spec: StateSpec) -> Compared:
    """Return what a program makes of a state."""
    there = with_layouts(state.spec, spec, state.tensors)
    found = differences(there, spec)
    tensors = carried(state.tensors, there, spec, partly=bool(found))
    adopted, left = (tuple(t.name for t in spec.tensors if (t.tensor in tensors) == fits) for fits in (True, False))
    has_weights = any(tensor.tensor in tensors for tensor in spec.tensors if not tensor.slot)
    flaw = None if found else _flaw(tensors, spec)
    return Compared(tensors, adopted, left, found, is_proven(there, spec), has_weights, flaw)


def _flaw(tensors: Mapping[str, np.ndarray], spec: StateSpec) -> str | None:
    """Return what is wrong with the tensors of a state that nothing speaks against."""
    if any(tensor.tensor not in tensors for tensor in spec.tensors):
        return "its tensors are not those of this program"
    for choice in spec.choices:
        if not choice.is_good(tensors[choice.indices]):
            return f"{choice.indices} are not different channels of the {choice.channels} of {choice.weight}"
    return None


def _newest(path: Path, attempt: Callable[[Path], State | PocketuneError | None]) -> State:
    """Return the newest good generation of a file."""
    newest = attempt(path)
    if isinstance(newest, State):
        return newest
    if isinstance(newest, ForeignState):
        raise ForeignState(f"{path}: {newest}")
    older = attempt(previous_of(path))
    reason = newest or "it is missing"
    if isinstance(older, State):
        warnings.warn(
            f"{path}: {reason}. The state saved before it (generation {older.generation}) is used.",
            StateWarning,
            stacklevel=4,
        )
        return older
    if newest is None and older is None:
        raise UsageError(f"{path}: there is no such state file", page="state-files")
    raise DamagedState(f"{path}: {reason}; {previous_of(path).name}: {older or 'it is missing'}")


def _attempt(
    path: Path, spec: StateSpec | None = None, replacing: Collection[str] = ()
) -> State | PocketuneError | None:
    """Return a good state, or why there is none; None when there is no file.

    Args:
        path: the file.
        spec: the program that the state is to belong to; None takes any.
        replacing: graph hashes of other programs that are as good.
    """
    check_regular(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="state-files") from error

    def check(there: StateSpec) -> None:
        if spec is None or there.program in replacing:
            return
        if found := differences(there, spec):
            raise _of_another(found)

    try:
        state = unpack(data, lambda there: check(there) if there.says_layouts else None)
        if spec is not None and not state.spec.says_layouts:
            check(with_layouts(state.spec, spec, state.tensors))
        return state
    except (DamagedState, ForeignState) as error:
        return error


def _of_another(found: tuple[str, ...]) -> ForeignState:
    """Return the refusal of a state by what differs."""
    return ForeignState(
        f"it belongs to another program: {'; '.join(found)}. Restored with adopt 'matching' it gives what fits"
    )


def _is_ours(path: Path) -> bool:
    """Return whether a damaged file was a state: it starts like one, or a crash left it empty."""
    check_regular(path)
    with path.open("rb") as file:
        return file.read(len(STATE)) in (STATE, b"")
