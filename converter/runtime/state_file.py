"""State files: the trained tensors of a program, in one format for the host and the phone (docs/state-file.md)."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from converter.errors import NumericError, PocketuneError, UsageError
from converter.program.files import beside, check_regular, write_atomically
from converter.program.manifest import Identity, ModelTensor, StateTensor, StoredDtype
from converter.program.manifest.checks import check_model_tensor
from converter.program.records import decode
from converter.runtime.interchange import UNPROVEN, StateSpec, carried, differences, is_proven, with_layouts

MAGIC = b"PTSTATE\n"
VERSION = 2
FORMAT: Literal["pocketune-state/2"] = "pocketune-state/2"
ALIGNMENT = 64
#: No header is longer; a limit for readers of files that they do not trust.
MAX_HEADER = 4 << 20
_FIXED = struct.Struct("<8sII")
_DIGEST = 32
#: How the names of slots began in version 1, which did not say what is one.
_OLD_SLOTS = ("optimizer/", "random/step")


class StateWarning(UserWarning):
    """The newest state could not be used and an older one was, or what was taken over does not say all of itself."""


class DamagedState(UsageError):
    """The file is cut short, altered, or not a state at all."""


class ForeignState(UsageError):
    """A good state that belongs to another program or a newer Pocketune.

    Attributes:
        program: graph hash of its program; empty for a format that is not known.
    """

    def __init__(self, message: str, program: str = "") -> None:
        super().__init__(message)
        self.program = program


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the header. `offset` counts from the start of the data."""

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    sha256: str
    slot: bool = False
    model: ModelTensor | None = None


@dataclass(frozen=True)
class Header:
    """The JSON header."""

    format: Literal["pocketune-state/2"]
    program: str
    generation: int
    identity: Identity | None
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True)
class _OldTensor:
    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class _OldHeader:
    """The header of version 1, which says nothing of the model."""

    format: Literal["pocketune-state/1"]
    program: str
    generation: int
    tensors: tuple[_OldTensor, ...]


@dataclass(frozen=True)
class State:
    """A state read from a file.

    Attributes:
        spec: what it belongs to, and what its tensors are.
        generation: counts the saves; the larger is the newer.
        tensors: by name.
        version: of the format.
    """

    spec: StateSpec
    generation: int
    tensors: dict[str, np.ndarray]
    version: int = VERSION


@dataclass(frozen=True)
class Compared:
    """A state beside a program.

    Attributes:
        tensors: those that match, as the program stores them.
        adopted: their names.
        left: those of the program that match none.
        differences: between the state's program and this one, in words; none where the state goes on there.
        proven: whether all was compared.
    """

    tensors: dict[str, np.ndarray]
    adopted: tuple[str, ...]
    left: tuple[str, ...]
    differences: tuple[str, ...]
    proven: bool


@dataclass(frozen=True)
class Restored:
    """What was taken from a state file.

    Attributes:
        program: graph hash of the program that the state belongs to.
        generation: of the state.
        adopted: the names of the tensors that were taken over.
        left: those of the program that stayed as they were; none without `adopt`.
        differences: between the state's program and this one, in words.
    """

    program: str
    generation: int
    adopted: tuple[str, ...]
    left: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def previous_of(path: str | os.PathLike) -> Path:
    """Where the older generation of a state file is kept."""
    return beside(path, "previous")


def pack(state: State) -> bytes:
    """The bytes of a state file.

    Raises:
        NumericError: a tensor holds NaN or infinity; such a state is never written.
    """
    entries, blocks, offset = [], [], 0
    kinds = {tensor.tensor: tensor for tensor in state.spec.tensors}
    for name, array in state.tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NumericError(f"the state is not saved: {name} holds NaN or infinity")
        raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        blocks += [bytes(-offset % ALIGNMENT), raw]
        offset += -offset % ALIGNMENT
        digest, kind = hashlib.sha256(raw).hexdigest(), kinds[name]
        place = (kind.dtype, array.shape, offset, len(raw), digest)
        entries.append(StoredTensor(name, *place, kind.slot, kind.model))
        offset += len(raw)
    header = asdict(Header(FORMAT, state.spec.program, state.generation, state.spec.identity, tuple(entries)))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    fixed = _FIXED.pack(MAGIC, VERSION, len(text))
    digest_of_header = hashlib.sha256(fixed + text).digest()
    if len(text) > MAX_HEADER:
        raise UsageError(f"the state has too many tensors: a header of {len(text)} bytes, and {MAX_HEADER} are allowed")
    padding = bytes(-(len(fixed) + _DIGEST + len(text)) % ALIGNMENT)
    return b"".join([fixed, digest_of_header, text, padding, *blocks])


def unpack(data: bytes, check: Callable[[StateSpec], None] | None = None) -> State:
    """The state in the bytes of a file, of whatever program.

    Args:
        data: the whole file.
        check: is told what the state is before its tensors are looked at, and may refuse it.

    Raises:
        DamagedState: any byte is missing, added or altered.
        ForeignState: the format is of another version.
    """
    header, version, start = _header(data)
    kinds = tuple(StateTensor(e.name, e.shape, e.dtype, e.slot, e.model) for e in header.tensors)
    spec = StateSpec(header.program, kinds, header.identity)
    if check is not None:
        check(spec)
    view = memoryview(data)
    tensors: dict[str, np.ndarray] = {}
    end = start
    for entry in header.tensors:
        offset, count = start + entry.offset, prod(entry.shape)
        if entry.offset % ALIGNMENT or offset < end or offset - end >= ALIGNMENT or any(view[end:offset]):
            raise DamagedState(f"{entry.name} does not follow the tensor before it")
        dtype = np.dtype(entry.dtype).newbyteorder("<")
        if any(d < 1 for d in entry.shape) or entry.nbytes != count * dtype.itemsize or entry.name in tensors:
            raise DamagedState(f"{entry.name} has a bad shape, size or name")
        end = offset + entry.nbytes
        raw = view[offset:end]
        if len(raw) != entry.nbytes or hashlib.sha256(raw).hexdigest() != entry.sha256:
            raise DamagedState(f"the data of {entry.name} is cut short or altered")
        tensors[entry.name] = np.frombuffer(raw, dtype).reshape(entry.shape).astype(entry.dtype)
        if dtype.kind == "f" and not np.isfinite(tensors[entry.name]).all():
            raise DamagedState(f"{entry.name} holds NaN or infinity")
    if end != len(data):
        raise DamagedState(f"{len(data) - end} bytes follow the last tensor")
    return State(spec, header.generation, tensors, version)


def _header(data: bytes) -> tuple[Header, int, int]:
    """The header, the version of the format, and where the data starts."""
    if len(data) < _FIXED.size + _DIGEST or not data.startswith(MAGIC):
        raise DamagedState("it is no state file, or cut short")
    _, version, length = _FIXED.unpack_from(data)
    body = _FIXED.size + _DIGEST
    expected, text = data[_FIXED.size : body], data[body : body + min(length, MAX_HEADER)]
    if len(text) != length or hashlib.sha256(data[: _FIXED.size] + text).digest() != expected:
        raise DamagedState("its header is cut short or altered")
    if not 1 <= version <= VERSION:
        advice = "update Pocketune" if version > VERSION else "it was saved by an older Pocketune: train again"
        raise ForeignState(f"format version {version} is not known here, only 1 to {VERSION}: {advice}")
    try:
        header = _decoded(json.loads(text), version)
    except (ValueError, RecursionError, UsageError) as error:
        reason = str(error).removeprefix("manifest: ")
        raise DamagedState(f"its header is not as agreed ({reason})") from None
    if not 1 <= header.generation < 1 << 53:
        raise DamagedState(f"its generation is {header.generation}")
    end = body + length
    start = end + -end % ALIGNMENT
    if any(data[end:start]):
        raise DamagedState("the padding after the header is altered")
    return header, version, start


def _decoded(parsed: Any, version: int) -> Header:
    """The header of a version in the form of the newest. Raises UsageError."""
    if version == VERSION:
        header = decode(Header, parsed, "header")
    else:
        old: _OldHeader = decode(_OldHeader, parsed, "header")
        # A slot has a name of its own, which no weight has: `optimizer/...`, or the number of the call.
        tensors = tuple(StoredTensor(**asdict(t), slot=t.name.startswith(_OLD_SLOTS)) for t in old.tensors)
        header = Header(FORMAT, old.program, old.generation, None, tensors)
    if header.identity is not None:
        header.identity.check()
    for tensor in header.tensors:
        if tensor.model is not None:
            check_model_tensor(tensor.name, tensor.model, tensor.shape)
    return header


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
        raise UsageError(f"{path} is not overwritten: {newest}")
    if isinstance(newest, DamagedState) and not isinstance(older, State) and not _is_ours(path):
        raise UsageError(f"{path} is not overwritten: {newest}")
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
    """The newest good generation as a program takes it; a `StateWarning` says what is not as it should be.

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
        raise UsageError(f"adopt is None or 'matching', not {adopt!r}")
    state = _newest(Path(path), lambda file: _attempt(file, spec, takes_any=adopt is not None))
    found = compared(state, spec)
    if not found.differences and found.left:
        raise DamagedState(f"{os.fspath(path)}: its tensors are not those of this program")
    if not any(tensor.tensor in found.tensors for tensor in spec.tensors if not tensor.slot):
        reasons = "; ".join(found.differences)
        raise ForeignState(f"{os.fspath(path)}: no weight of it matches one of this program: {reasons}")
    if not found.differences and not found.proven:
        warnings.warn(f"{os.fspath(path)}: {UNPROVEN}", StateWarning, stacklevel=3)
    return found.tensors, Restored(state.spec.program, state.generation, found.adopted, found.left, found.differences)


def compared(state: State, spec: StateSpec) -> Compared:
    """What a program makes of a state."""
    there = with_layouts(state.spec, spec, state.tensors)
    found = differences(there, spec)
    tensors = carried(state.tensors, there, spec, partly=bool(found))
    adopted, left = (tuple(t.name for t in spec.tensors if (t.tensor in tensors) == fits) for fits in (True, False))
    return Compared(tensors, adopted, left, found, is_proven(there, spec))


def _newest(path: Path, attempt: Callable[[Path], State | PocketuneError | None]) -> State:
    """The newest good generation of a file."""
    newest = attempt(path)
    if isinstance(newest, State):
        return newest
    if isinstance(newest, ForeignState):
        raise newest
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
        raise UsageError(f"{path}: there is no such state file")
    raise DamagedState(f"{path}: {reason}; {previous_of(path).name}: {older or 'it is missing'}")


def _attempt(
    path: Path, spec: StateSpec | None = None, replacing: Collection[str] = (), takes_any: bool = False
) -> State | PocketuneError | None:
    """A good state, or why there is none; None when there is no file.

    Args:
        path: the file.
        spec: the program that the state is to belong to; None takes any.
        replacing: graph hashes of other programs that are as good.
        takes_any: whether all are.
    """
    check_regular(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error

    def check(there: StateSpec) -> None:
        if spec is None or takes_any or there.program in replacing:
            return
        if found := differences(there, spec):
            raise ForeignState(
                f"it belongs to another program: {'; '.join(found)}. Restored with adopt 'matching' it gives what fits",
                there.program,
            )

    try:
        state = unpack(data, lambda there: check(there) if there.says_layouts else None)
        if spec is not None:
            state = replace(state, spec=with_layouts(state.spec, spec, state.tensors))
            check(state.spec)
        return state
    except (DamagedState, ForeignState) as error:
        return error


def _is_ours(path: Path) -> bool:
    """Whether a damaged file was a state: it starts like one, or a crash left it empty."""
    check_regular(path)
    with path.open("rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, b"")
