"""State files: the trained tensors of a program, in one format for the host and the phone (docs/state-file.md)."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from converter.errors import NumericError, PocketuneError, UsageError
from converter.program.files import beside, check_regular, write_atomically
from converter.program.manifest import StoredDtype
from converter.program.records import decode

MAGIC = b"PTSTATE\n"
VERSION = 1
FORMAT: Literal["pocketune-state/1"] = "pocketune-state/1"
ALIGNMENT = 64
#: No header is longer; a limit for readers of files that they do not trust.
MAX_HEADER = 4 << 20
_FIXED = struct.Struct("<8sII")
_DIGEST = 32


class StateWarning(UserWarning):
    """The newest state could not be used and an older one was."""


class DamagedState(UsageError):
    """The file is cut short, altered, or not a state at all."""


class ForeignState(UsageError):
    """A good state that belongs to another program or a newer Pocketune."""


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the header. `offset` counts from the start of the data."""

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Header:
    """The JSON header."""

    format: Literal["pocketune-state/1"]
    program: str
    generation: int
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True)
class State:
    """A state read from a file.

    Attributes:
        program: graph hash of the program it belongs to.
        generation: counts the saves; the larger is the newer.
        tensors: by name.
    """

    program: str
    generation: int
    tensors: dict[str, np.ndarray]


def previous_of(path: str | os.PathLike) -> Path:
    """Where the older generation of a state file is kept."""
    return beside(path, "previous")


def pack(state: State) -> bytes:
    """The bytes of a state file.

    Raises:
        NumericError: a tensor holds NaN or infinity; such a state is never written.
    """
    entries, blocks, offset = [], [], 0
    for name, array in state.tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NumericError(f"the state is not saved: {name} holds NaN or infinity")
        raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        blocks += [bytes(-offset % ALIGNMENT), raw]
        offset += -offset % ALIGNMENT
        digest = hashlib.sha256(raw).hexdigest()
        entries.append(StoredTensor(name, cast(StoredDtype, array.dtype.name), array.shape, offset, len(raw), digest))
        offset += len(raw)
    header = asdict(Header(FORMAT, state.program, state.generation, tuple(entries)))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    fixed = _FIXED.pack(MAGIC, VERSION, len(text))
    digest_of_header = hashlib.sha256(fixed + text).digest()
    if len(text) > MAX_HEADER:
        raise UsageError(f"the state has too many tensors: a header of {len(text)} bytes, and {MAX_HEADER} are allowed")
    padding = bytes(-(len(fixed) + _DIGEST + len(text)) % ALIGNMENT)
    return b"".join([fixed, digest_of_header, text, padding, *blocks])


def unpack(data: bytes, program: str | None = None) -> State:
    """The state in the bytes of a file.

    Args:
        data: the whole file.
        program: graph hash of the program it shall belong to; None takes any.

    Raises:
        DamagedState: any byte is missing, added or altered.
        ForeignState: the format is of another version, or the state of another program; its tensors were not looked at.
    """
    header, start = _header(data)
    if program not in (None, header.program):
        raise ForeignState(
            f"it belongs to another program (hash {header.program[:12]}..., and this one is {str(program)[:12]}...)"
        )
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
    return State(header.program, header.generation, tensors)


def _header(data: bytes) -> tuple[Header, int]:
    """The header and where the data starts."""
    if len(data) < _FIXED.size + _DIGEST or not data.startswith(MAGIC):
        raise DamagedState("it is no state file, or cut short")
    _, version, length = _FIXED.unpack_from(data)
    body = _FIXED.size + _DIGEST
    expected, text = data[_FIXED.size : body], data[body : body + min(length, MAX_HEADER)]
    if len(text) != length or hashlib.sha256(data[: _FIXED.size] + text).digest() != expected:
        raise DamagedState("its header is cut short or altered")
    if version != VERSION:
        advice = "update Pocketune" if version > VERSION else "it was saved by an older Pocketune: train again"
        raise ForeignState(f"format version {version} is not known here, only {VERSION}: {advice}")
    try:
        parsed: Any = json.loads(text)
        header = decode(Header, parsed, "header")
    except (ValueError, RecursionError, UsageError) as error:
        raise DamagedState(f"its header is not as agreed ({error})") from None
    if not 1 <= header.generation < 1 << 53:
        raise DamagedState(f"its generation is {header.generation}")
    end = body + length
    start = end + -end % ALIGNMENT
    if any(data[end:start]):
        raise DamagedState("the padding after the header is altered")
    return header, start


def save_state(path: str | os.PathLike, program: str, tensors: Mapping[str, np.ndarray]) -> int:
    """Writes the next generation; the one before stays as `<path>.previous`.

    Args:
        path: the state file.
        program: graph hash of the program.
        tensors: by name, in the order of the manifest.

    Returns:
        The generation written.

    Raises:
        NumericError: a tensor is not finite; the files stay as they were.
        UsageError: the file cannot be written, or `path` holds something that is not a state of this program.
    """
    path = Path(path)
    newest, older = _attempt(path, program), _attempt(previous_of(path), program)
    if isinstance(newest, ForeignState):
        raise UsageError(f"{path} is not overwritten: {newest}")
    if isinstance(newest, DamagedState) and not isinstance(older, State) and not _is_ours(path):
        raise UsageError(f"{path} is not overwritten: {newest}")
    generation = 1 + max((s.generation for s in (newest, older) if isinstance(s, State)), default=0)
    data = pack(State(program, generation, dict(tensors)))
    # A damaged file must not take the place of a good older one.
    write_atomically(path, data, previous=previous_of(path) if isinstance(newest, State) else None)
    return generation


def load_state(path: str | os.PathLike, program: str) -> State:
    """Reads the newest good generation; a `StateWarning` says when that is the older one.

    Raises:
        UsageError: there is none, neither is good, or it belongs to another program.
    """
    path = Path(path)
    newest = _attempt(path, program)
    if isinstance(newest, State):
        return newest
    if isinstance(newest, ForeignState):
        raise newest
    older = _attempt(previous_of(path), program)
    reason = newest or "it is missing"
    if isinstance(older, State):
        warnings.warn(
            f"{path}: {reason}. The state saved before it (generation {older.generation}) is used.",
            StateWarning,
            stacklevel=3,
        )
        return older
    if newest is None and older is None:
        raise UsageError(f"{path}: there is no such state file")
    raise DamagedState(f"{path}: {reason}; {previous_of(path).name}: {older or 'it is missing'}")


def _attempt(path: Path, program: str) -> State | PocketuneError | None:
    """A good state of this program, or why there is none; None when there is no file."""
    check_regular(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return unpack(data, program)
    except (DamagedState, ForeignState) as error:
        return error


def _is_ours(path: Path) -> bool:
    """Whether a damaged file was a state: it starts like one, or a crash left it empty."""
    check_regular(path)
    with path.open("rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, b"")
