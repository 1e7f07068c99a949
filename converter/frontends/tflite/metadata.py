"""TFLite Metadata: names of classes, normalization of an input, and who made the model, as its author wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import flatbuffers
from flatbuffers import encode, number_types, packer

from converter.frontends.tflite.reading.file import File
from converter.program.flatbuffer.damage import DAMAGED

#: The entry, and how its flatbuffer begins.
ENTRY, _IDENTIFIER = "TFLITE_METADATA", b"M001"
#: The oldest reader of what is written.
_OLDEST_PARSER = "1.0.0"
# Places of fields in the tables of its schema.
_SUBGRAPHS, _PARSER = 3, 7  # of ModelMetadata
_INPUTS, _OUTPUTS = 2, 3  # of SubGraphMetadata
_UNITS, _FILES = 4, 6  # of TensorMetadata
_FILE_NAME, _FILE_KIND = 0, 2  # of AssociatedFile
_UNIT_KIND, _UNIT = 0, 1  # of ProcessUnit
_MEAN, _DEVIATION = 0, 1  # of NormalizationOptions
#: Places of the texts of ModelMetadata, by their names on a card.
_CARD = {"name": 0, "description": 1, "version": 2, "author": 4, "license": 5}
_AXIS_LABELS, _NORMALIZATION = 2, 1
_MOST_LABELS = 1 << 20


def label_file_of(file: File, output: int) -> str | None:
    """Return the name of the appended file that names the classes of an output, by its place; None for none."""
    for entry in _of_tensor(file, _OUTPUTS, output, _FILES):
        if _byte(entry, _FILE_KIND) == _AXIS_LABELS and (name := _text(entry, _FILE_NAME)) in file.associated:
            return name
    return None


def labels_of(file: File, output: int) -> list[str] | None:
    """Return the names of the classes of an output, by its place; None where the file does not say them."""
    name = label_file_of(file, output)
    if name is None:
        return None
    lines = file.associated[name].decode(errors="replace").splitlines()
    return lines if 0 < len(lines) <= _MOST_LABELS and all(lines) else None


def preprocessing_of(file: File) -> dict[str, Any] | None:
    """Return how the first input is made: `mean` and `std`, one a channel or one for all, of (x - mean) / std."""
    for unit in _of_tensor(file, _INPUTS, 0, _UNITS):
        if _byte(unit, _UNIT_KIND) == _NORMALIZATION and (options := _table(unit, _UNIT)) is not None:
            mean, deviation = (_floats(options, place) for place in (_MEAN, _DEVIATION))
            if mean and len(mean) == len(deviation):
                return {"mean": mean, "std": deviation}
    return None


def card_of(file: File) -> dict[str, str]:
    """Return what people are to know of the model: name, description, version, author and license where it has them."""
    try:
        root = _root(file)
        said = {} if root is None else {name: _text(root, place) for name, place in _CARD.items()}
    except DAMAGED:
        return {}
    return {name: text for name, text in said.items() if text.strip()}


def with_labels(file: File, output: int, labels: Sequence[str]) -> File | None:
    """Return the file with other names of an output's classes; None where its metadata has no place for them.

    A file without metadata gets some, which say where the names are and nothing else.
    """
    lines = "".join(f"{label}\n" for label in labels).encode()
    name = label_file_of(file, output)
    if name is not None:
        return replace(file, associated={**file.associated, name: lines})
    if _entry(file) is not None:
        return None
    name = next(n for n in _label_files() if n not in file.associated)
    return replace(file, associated={**file.associated, name: lines}, metadata=_written(file, output, name))


def _label_files() -> Iterator[str]:
    yield "labels.txt"
    yield from (f"labels_{i}.txt" for i in count(1))


def _written(file: File, output: int, labels: str) -> bytes:
    """Return metadata that say of an output that a file names its classes."""
    b = flatbuffers.Builder(256)

    def table(fields: Mapping[int, int], kind: int | None = None) -> int:
        b.StartObject(8)
        for place, offset in fields.items():
            b.PrependUOffsetTRelativeSlot(place, offset, 0)
        if kind is not None:
            b.PrependInt8Slot(_FILE_KIND, kind, 0)
        return b.EndObject()

    def vector(offsets: Sequence[int]) -> int:
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return b.EndVector()

    named = vector([table({_FILE_NAME: b.CreateString(labels)}, _AXIS_LABELS)])
    outputs = [table({_FILES: named} if i == output else {}) for i in range(len(file.outputs))]
    sides = {_INPUTS: vector([table({}) for _ in file.inputs]), _OUTPUTS: vector(outputs)}
    graphs = [table(sides if i == file.subgraph else {}) for i in range(file.subgraph + 1)]
    fields = {_SUBGRAPHS: vector(graphs), _PARSER: b.CreateString(_OLDEST_PARSER)}
    b.Finish(table(fields), file_identifier=_IDENTIFIER)
    return bytes(b.Output())


def _entry(file: File) -> Any:
    """Return the metadata of a file, a buffer; None where it has none."""
    model, _ = file.tables
    entries = (model.Metadata(i) for i in range(model.MetadataLength()))
    return next((model.Buffers(e.Buffer()) for e in entries if e.Name() == ENTRY.encode()), None)


def _root(file: File) -> Any:
    """Return the table ModelMetadata of a file, None where it has none; raise one of DAMAGED if it cannot be read."""
    if (entry := _entry(file)) is None:
        return None
    data = entry.DataAsNumpy().tobytes()
    return flatbuffers.table.Table(data, encode.Get(packer.uoffset, data, 0)) if data[4:8] == _IDENTIFIER else None


def _of_tensor(file: File, side: int, number: int, field: int) -> list[Any]:
    """Return what the metadata says of an input or output in a field; nothing where it is damaged or says nothing."""
    try:
        if (root := _root(file)) is not None:
            graphs = list(_tables(root, _SUBGRAPHS))
            tensors = list(_tables(graphs[file.subgraph], side))
            return list(_tables(tensors[number], field))
    except DAMAGED:
        pass
    return []


def _tables(table: Any, place: int) -> Iterator[Any]:
    if field := table.Offset(4 + 2 * place):
        start = table.Vector(field)
        for i in range(min(table.VectorLen(field), _MOST_LABELS)):
            yield flatbuffers.table.Table(table.Bytes, table.Indirect(start + 4 * i))


def _table(table: Any, place: int) -> Any:
    field = table.Offset(4 + 2 * place)
    return flatbuffers.table.Table(table.Bytes, table.Indirect(field + table.Pos)) if field else None


def _text(table: Any, place: int) -> str:
    field = table.Offset(4 + 2 * place)
    return table.String(field + table.Pos).decode(errors="replace") if field else ""


def _byte(table: Any, place: int) -> int:
    field = table.Offset(4 + 2 * place)
    return int(table.Get(number_types.Int8Flags, field + table.Pos)) if field else 0


def _floats(table: Any, place: int) -> list[float]:
    if not (field := table.Offset(4 + 2 * place)):
        return []
    start, count = table.Vector(field), min(table.VectorLen(field), _MOST_LABELS)
    return [float(table.Get(number_types.Float32Flags, start + 4 * i)) for i in range(count)]
