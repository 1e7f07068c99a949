"""TFLite Metadata: the names of classes, and how an input is normalized, as the author wrote them into a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import flatbuffers
from flatbuffers import encode, number_types, packer

from tflite_frontend.file import DAMAGED, File

#: The entry, and how its flatbuffer begins.
_ENTRY, _IDENTIFIER = "TFLITE_METADATA", b"M001"
# Places of fields in the tables of its schema.
_SUBGRAPHS = 3  # of ModelMetadata
_INPUTS, _OUTPUTS = 2, 3  # of SubGraphMetadata
_UNITS, _FILES = 4, 6  # of TensorMetadata
_FILE_NAME, _FILE_KIND = 0, 2  # of AssociatedFile
_UNIT_KIND, _UNIT = 0, 1  # of ProcessUnit
_MEAN, _DEVIATION = 0, 1  # of NormalizationOptions
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


def with_labels(file: File, output: int, labels: Sequence[str]) -> dict[str, bytes]:
    """Return the appended files, that of an output's labels with other names in it."""
    name = label_file_of(file, output)
    if name is None:
        return dict(file.associated)
    return {**file.associated, name: "".join(f"{label}\n" for label in labels).encode()}


def _of_tensor(file: File, side: int, number: int, field: int) -> list[Any]:
    """Return what the metadata says of an input or output in a field; nothing where it is damaged or says nothing."""
    try:
        model, _ = file.tables
        for i in range(model.MetadataLength()):
            entry = model.Metadata(i)
            if entry.Name() == _ENTRY.encode():
                data = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
                if data[4:8] != _IDENTIFIER:
                    return []
                root = flatbuffers.table.Table(data, encode.Get(packer.uoffset, data, 0))
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
