"""State file format, for the host and the phone: packing and unpacking (docs/state-file.md)."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from converter.program.checksum import STATE
from converter.program.manifest import Identity, ModelTensor, StateTensor, StoredDtype
from converter.program.manifest.checks import check_model_tensor
from converter.program.manifest.schema import check_fields
from converter.runtime.state.interchange import StateSpec
from converter.support.errors import NumericError, UsageError
from converter.support.records import decode
from converter.support.strict_json import parse_json

VERSION = 2
FORMAT: Literal["pocketune-state/2"] = "pocketune-state/2"
ALIGNMENT = 64
#: No header is longer; a limit for readers of files that they do not trust.
MAX_HEADER = 4 << 20
_FIXED = struct.Struct("<8sII")
_DIGEST = 32
#: How the names of slots began in version 1, which did not say what is one.
_OLD_SLOTS = ("optimizer/", "random/step")


class DamagedState(UsageError):
    """The file is cut short, altered, or not a state at all."""

    page = "state-files"


class ForeignState(UsageError):
    """A good state that belongs to another program or a newer Pocketune."""

    page = "state-files"


@dataclass(frozen=True)
class _OldTensor:
    """One entry of the header of version 1. `offset` counts from the start of the data."""

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class StoredTensor(_OldTensor):
    """One entry of the header."""

    slot: bool
    model: ModelTensor | None


@dataclass(frozen=True)
class Header:
    """The JSON header."""

    format: Literal["pocketune-state/2"]
    program: str
    generation: int
    identity: Identity | None
    tensors: tuple[StoredTensor, ...]
    labels: tuple[tuple[str, ...], ...] = ()

    def text(self) -> str:
        """Return the JSON; without labels where there are none, as older versions wrote it."""
        said = asdict(self)
        if not self.labels:
            del said["labels"]
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


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


def pack(state: State) -> bytes:
    """Return the bytes of a state file.

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
    spec = state.spec
    text = Header(FORMAT, spec.program, state.generation, spec.identity, tuple(entries), spec.labels).text().encode()
    fixed = _FIXED.pack(STATE, VERSION, len(text))
    digest_of_header = hashlib.sha256(fixed + text).digest()
    if len(text) > MAX_HEADER:
        raise UsageError(
            f"the state has too many tensors: a header of {len(text)} bytes, and {MAX_HEADER} are allowed",
            page="state-files",
        )
    padding = bytes(-(len(fixed) + _DIGEST + len(text)) % ALIGNMENT)
    return b"".join([fixed, digest_of_header, text, padding, *blocks])


def unpack(data: bytes, check: Callable[[StateSpec], None] | None = None) -> State:
    """Return the state in the bytes of a file, of whatever program.

    Args:
        data: the whole file.
        check: is told what the state is before its tensors are looked at, and may refuse it.

    Raises:
        DamagedState: any byte is missing, added or altered.
        ForeignState: the format is of another version.
    """
    header, version, start = _header(data)
    kinds = tuple(StateTensor(e.name, e.shape, e.dtype, e.slot, e.model) for e in header.tensors)
    spec = StateSpec(header.program, kinds, header.identity, header.labels)
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
    """Return the header, the version of the format, and where the data starts."""
    if len(data) < _FIXED.size + _DIGEST or not data.startswith(STATE):
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
        header = _decoded(parse_json(text), version)
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
    """Return the header of a version in the form of the newest. Raises UsageError."""
    if version == VERSION:
        header = decode(Header, parsed, "header")
    else:
        old: _OldHeader = decode(_OldHeader, parsed, "header")
        # A slot has a name of its own, which no weight has: `optimizer/...`, or the number of the call.
        tensors = tuple(StoredTensor(**asdict(t), slot=t.name.startswith(_OLD_SLOTS), model=None) for t in old.tensors)
        header = Header(FORMAT, old.program, old.generation, None, tensors)
    if header.identity is not None:
        check_fields(header.identity, "identity")
    for tensor in header.tensors:
        if tensor.model is not None:
            check_model_tensor(tensor.name, tensor.model, tensor.shape)
    return header
