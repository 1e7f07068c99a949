"""Program file reader: nothing in it is believed before its checksum and its manifest are checked. Needs no LiteRT."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from converter.program.checksum import verify_checksum
from converter.program.flatbuffer.metadata import ACCOUNT, read_metadata
from converter.program.heads import metadata_of, of_signature, of_subgraph
from converter.program.manifest import (
    FROZEN,
    INFERENCE,
    INITIAL,
    MANIFEST,
    Manifest,
    ParameterSpec,
    StateTensor,
    manifest_of_bytes,
)
from converter.support.errors import UsageError
from converter.support.files import Mapped, open_regular

#: What a program is read from: a path, its bytes, or the mapping of a large one.
Readable = str | os.PathLike | bytes | Mapped
T = TypeVar("T")


@dataclass(frozen=True)
class ProgramFile:
    """A checked program. Of a file nothing is copied into memory: all is read where it is mapped.

    Attributes:
        data: the `.tflite`: bytes, or the mapping of the file.
        manifest: what it says about itself.
        metadata: all that travels in it besides the graphs; views of `data`.
        digest: a sha256 over it, in hexadecimal digits.
        descriptor: the open file, for as long as this object lives; None for bytes.
        head: which of the heads of a file of several; None of a file of one.
    """

    data: bytes | mmap.mmap = field(repr=False)
    manifest: Manifest
    metadata: Mapping[str, memoryview] = field(repr=False)
    digest: str
    descriptor: int | None = None
    head: str | None = None

    def stored(self, signature: str) -> str:
        """Return what a signature of the manifest is called in the file."""
        return of_signature(signature, self.head)

    def own(self, named: Iterable[tuple[str, T]]) -> dict[str, T]:
        """Return what is given by subgraph, by the names of the manifest; what is of other heads is left out."""
        return {own: each for name, each in named if (own := of_subgraph(name, self.head)) is not None}

    @property
    def path(self) -> str | None:
        """A path of the file that was checked, whatever has its name by now; None for bytes."""
        return None if self.descriptor is None else f"/dev/fd/{self.descriptor}"

    def initial(self, tensor: StateTensor) -> np.ndarray:
        """Return the built value of a state tensor, read-only. Raises UsageError when the file lacks it."""
        return self.entry(INITIAL + tensor.tensor, tensor.shape, tensor.dtype)

    def frozen(self, parameter: ParameterSpec) -> np.ndarray | None:
        """Return the part of a weight that does not train, read-only; None when all of it trains."""
        part = parameter.frozen
        return None if part is None else self.entry(part.entry, part.shape, parameter.dtype)

    def entry(self, entry: str, shape: tuple[int, ...], kind: str = "float32") -> np.ndarray:
        """Return a tensor in the metadata, read-only; one element stands for a tensor of equal ones.

        Raises:
            UsageError: it is missing, or not of this size.
        """
        raw, dtype = self.metadata.get(entry), np.dtype(kind).newbyteorder("<")
        size = int(np.prod(shape, dtype=np.int64))
        if raw is None or len(raw) not in (size * dtype.itemsize, dtype.itemsize):
            raise UsageError(
                f"its metadata entry {entry!r} is missing or of another size: build it again", page="program-files"
            )
        array = np.frombuffer(raw, dtype)
        return array.reshape(shape) if len(array) == size else np.broadcast_to(array, shape)


def read_program(program: Readable, head: str | None = None) -> ProgramFile:
    """Opens a training program.

    Args:
        program: the path of the `.tflite`, its bytes, or `Program.data` of a large one. A file is mapped, not read:
            another may be renamed over it, but whoever cuts it short or writes into it pulls the ground from under all
            who have it open.
        head: which of the heads of a file of several.

    Raises:
        UsageError: there is no such file, it is no Pocketune program, or a byte of it is not as it was built.
    """
    if isinstance(program, bytes):
        return _checked("the program", program, head)
    if isinstance(program, Mapped):
        return _of_descriptor("the program", program, head, os.dup(program.descriptor))
    if not isinstance(program, str | os.PathLike):
        raise UsageError(f"a program is the path of a .tflite or its bytes, not {program!r}", page="program-files")
    path = Path(program)
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file", page="program-files") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="program-files") from None
    try:
        data = _mapped(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return _of_descriptor(os.fspath(program), data, head, descriptor)


def _of_descriptor(where: str, data: bytes | mmap.mmap, head: str | None, descriptor: int) -> ProgramFile:
    """Return the program of an open file, which is closed with it."""
    try:
        file = _checked(where, data, head, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(file, os.close, descriptor)
    return file


def _mapped(path: Path, descriptor: int) -> bytes | mmap.mmap:
    try:
        if not os.fstat(descriptor).st_size:
            return b""
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="program-files") from None


def _checked(
    where: str, data: bytes | mmap.mmap, head: str | None = None, descriptor: int | None = None
) -> ProgramFile:
    """Return a program, unless its checksum, its manifest or a tensor that the manifest names is not right."""
    try:
        digest = verify_checksum(data)
        metadata = metadata_of(read_metadata(data, (INITIAL, FROZEN, INFERENCE, ACCOUNT)), head)
        if MANIFEST not in metadata:
            raise UsageError("it is no Pocketune program: it has no manifest", page="program-files")
        file = ProgramFile(data, manifest_of_bytes(bytes(metadata[MANIFEST])), metadata, digest, descriptor, head)
        for tensor in file.manifest.state_tensors:
            file.initial(tensor)
        for parameter in file.manifest.parameters:
            file.frozen(parameter)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", page="program-files") from None
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)  # the check has touched every page, and few are needed again
    return file
