"""Emission: lowered graphs become one flatbuffer, mechanically and deterministically."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import flatbuffers
import numpy as np

from converter.backend.emit.emit_subgraph import EmitError, OperatorCodes, SubgraphWriter
from converter.ir import Graph, TensorType, Value
from converter.program.flatbuffer import control_dependencies as order
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers, Finish
from converter.program.flatbuffer.metadata import REFERENCE
from converter.support.collecting import no_room
from converter.support.errors import UnsupportedError
from converter.support.files import Mapped

#: Bytes of a file from which on it is made on the disk.
ON_DISK = 1 << 28
#: What the nodes of a graph make, in the order in which the file numbers it.
Numbering = Callable[[Graph], Iterable[Value]]


@dataclass(frozen=True)
class Subgraph:
    """A lowered graph under a name; with `signature`, callers find it by that name."""

    name: str
    graph: Graph
    signature: bool = True


class ModelWriter:
    """The subgraphs of a file, and those that their operators run; their data is added to the buffers."""

    def __init__(self, subgraphs: Sequence[Subgraph], buffers: Buffers, numbered: Numbering = lambda graph: ()) -> None:
        self._subgraphs = [*subgraphs, *_bodies(subgraphs)]
        self._buffers, self._codes = buffers, OperatorCodes()
        self._indices: dict[str | Graph, int] = {subgraph.name: i for i, subgraph in enumerate(self._subgraphs)}
        if len(self._indices) != len(self._subgraphs):
            raise EmitError(f"two subgraphs share a name: {[s.name for s in self._subgraphs]}")
        self._indices |= {subgraph.graph: i for i, subgraph in enumerate(self._subgraphs)}
        self._writers = [
            SubgraphWriter(subgraph.graph, buffers, subgraph not in subgraphs, numbered(subgraph.graph))
            for subgraph in self._subgraphs
        ]

    def operators(self) -> list[int]:
        """Return how many each subgraph has."""
        return [len(subgraph.graph.nodes) for subgraph in self._subgraphs]

    def write(self, builder: flatbuffers.Builder, description: str, entries: Mapping[str, int]) -> None:
        """Writes the file; `entries` are metadata: numbers of buffers by name."""
        buffer_offsets = self._buffers.write(builder)
        graph_offsets = [
            writer.write(builder, subgraph.name, self._codes, self._indices)
            for writer, subgraph in zip(self._writers, self._subgraphs, strict=True)
        ]
        signature_offsets = [
            writer.write_signature(builder, subgraph.name, i)
            for i, (writer, subgraph) in enumerate(zip(self._writers, self._subgraphs, strict=True))
            if subgraph.signature
        ]
        metadata_offsets = [
            schema.table(builder, "Metadata", Name=name, Buffer=buffer) for name, buffer in entries.items()
        ]
        model = schema.table(
            builder,
            "Model",
            Version=schema.VERSION,
            Description=description,
            OperatorCodes=schema.offset_vector(builder, self._codes.write(builder)),
            Subgraphs=schema.offset_vector(builder, graph_offsets),
            Buffers=schema.offset_vector(builder, buffer_offsets),
            Metadata=schema.offset_vector(builder, metadata_offsets),
            SignatureDefs=schema.offset_vector(builder, signature_offsets),
        )
        builder.Finish(model, file_identifier=schema.FILE_IDENTIFIER)


@dataclass(frozen=True)
class Draft:
    """A file whose tables are written, and whose data lie where they were."""

    builder: flatbuffers.Builder
    buffers: Buffers
    entries: Mapping[str, int]

    def file(self, finish: Mapping[str, Finish] | None = None) -> bytes | Mapped:
        """Put the file together, a large one on the disk.

        `finish` writes metadata entries that depend on the whole file, where they lie.

        Raises:
            UsageError: there is no room on the disk.
        """
        by_number = {self.entries[name]: write for name, write in (finish or {}).items()}
        if self.buffers.nbytes <= ON_DISK:
            return self.buffers.file(self.builder, by_number)
        try:
            return self.buffers.file_on_disk(self.builder, by_number)
        except OSError as error:
            raise no_room(self.buffers.nbytes, error) from error

    def number(self, array: np.ndarray) -> int | None:
        """Return the number of the buffer that holds a constant, None where none does."""
        return self.buffers.number(array)

    def view(self, data: bytes | Mapped, number: int, type: TensorType) -> np.ndarray:
        """Return a constant as it lies in the file, read-only."""
        flat = np.frombuffer(data, type.dtype.newbyteorder("<"), type.size, self.buffers.starts[number])
        return flat.reshape(type.shape)


def draft(
    subgraphs: Sequence[Subgraph],
    metadata: Mapping[str, bytes],
    description: str,
    tensors: Mapping[str, bytes | np.ndarray] | None = None,
    derived: Mapping[str, Callable[[Buffers], bytes]] | None = None,
    in_order: bool = False,
    numbered: Numbering = lambda graph: (),
    shares: bool = False,
) -> Draft:
    """Return a `.tflite` file that is still to be put together; equal input gives equal bytes.

    Args:
        subgraphs: the first is the one that a caller without signatures runs.
        metadata: small entries that travel in the file, each at a 16-byte boundary.
        description: free text for people.
        tensors: data that graphs do not bring or share with these entries. The runtime copies all metadata to the
            heap, so an entry of them holds the number of a buffer, see `converter.program.flatbuffer.metadata`.
        derived: entries like these, made of the other buffers, which they may name by number.
        in_order: the operators run in the order in which they stand also where a delegate takes some of them.
        numbered: the order in which each graph's tensors get their numbers; as they are made, where it does not say.
        shares: whether a constant that is a part of another is stored with it, and a flatbuffer's end is none of the
            file; see `Buffers`.

    Raises:
        EmitError: a graph breaks the grammar of lowered graphs.
        UnsupportedError: the file would be larger than 2 GiB, and old runtimes read it.
    """
    buffers = Buffers(shares)
    entries = {name: buffers.add_entry(data) for name, data in metadata.items()}
    for name, data in (tensors or {}).items():
        entries[name] = buffers.add_entry(REFERENCE.pack(buffers.add(data)))
    model = ModelWriter(subgraphs, buffers, numbered)
    if in_order:
        entries[order.ENTRY] = buffers.add_entry(order.control_dependencies(model.operators()))
    for name, derive in (derived or {}).items():
        entries[name] = buffers.add_entry(REFERENCE.pack(buffers.add(derive(buffers))))
    if buffers.nbytes > schema.LARGEST_FILE and not shares:
        raise UnsupportedError(
            f"the program holds {buffers.nbytes / 2**30:.1f} GiB of tensors; for this target a "
            ".tflite file ends at 2 GiB. Build for a newer runtime, freeze nothing twice, use a smaller model, or drop "
            "signatures.",
            page="file-size",
        )
    builder = schema.roomy_builder(buffers.nbytes)
    model.write(builder, description, entries)
    return Draft(builder, buffers, entries)


def emit(
    subgraphs: Sequence[Subgraph],
    metadata: Mapping[str, bytes],
    description: str,
    in_order: bool = False,
    numbered: Numbering = lambda graph: (),
) -> bytes:
    """Return the bytes of a `.tflite` file; see `draft`."""
    made = draft(subgraphs, metadata, description, in_order=in_order, numbered=numbered)
    return made.buffers.file(made.builder)


def _bodies(subgraphs: Sequence[Subgraph]) -> list[Subgraph]:
    """Return what operators of the subgraphs run, at any depth, each named after who runs it."""
    found: dict[Graph, str] = {}

    def visit(name: str, graph: Graph) -> None:
        for number, node in enumerate(graph.nodes):
            for part, body in enumerate(node.op.bodies()):
                if body not in found:
                    found[body] = f"{name}/{node.op.name}_{number}_{part}"
                    visit(found[body], body)

    for subgraph in subgraphs:
        visit(subgraph.name, subgraph.graph)
    return [Subgraph(name, graph, signature=False) for graph, name in found.items()]
