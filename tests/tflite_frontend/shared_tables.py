"""Files whose tables share others: a few bytes that stand for very many tensors, operators, names and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

#: Entries of a vector, bytes of a name: all of them are as good as one table each.
MANY = 1 << 18
#: Places of fields in the schema's tables.
_TENSOR = {"shape": 0, "type": 1, "name": 3, "quantization": 4, "signature": 7}
_OPERATOR = {"inputs": 1, "outputs": 2, "options_type": 3, "options": 4, "custom": 5}
_SUBGRAPH = {"tensors": 0, "inputs": 1, "outputs": 2, "operators": 3}
_MODEL = {"version": 0, "codes": 1, "subgraphs": 2, "buffers": 4, "metadata": 6, "signatures": 7}
KINDS = (
    *("tensors", "shapes", "signatures of shapes", "names of tensors", "scales", "operators", "operands", "results"),
    *(
        "options",
        "custom options",
        "codes",
        "names of codes",
        "inputs",
        "outputs",
        "subgraphs",
        "buffers",
        "signatures",
    ),
    *("entries of signatures", "metadata"),
)


class _Writer:
    def __init__(self) -> None:
        self.b = flatbuffers.Builder(1 << 20)

    def ints(self, *numbers: int, times: int = 1) -> int:
        return int(self.b.CreateNumpyVector(np.tile(np.array(numbers, np.int32), times)))

    def tables(self, offsets: Sequence[int]) -> int:
        self.b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.b.PrependUOffsetTRelative(offset)
        return int(self.b.EndVector())

    def table(self, places: dict[str, int], **fields: Any) -> int:
        self.b.StartObject(16)
        for name, value in fields.items():
            if name in ("type", "options_type", "kind"):
                self.b.PrependInt8Slot(places[name], value, -1)
            elif name in ("version", "number"):
                self.b.PrependInt32Slot(places[name], value, -1)
            else:
                self.b.PrependUOffsetTRelativeSlot(places[name], value, 0)
        return int(self.b.EndObject())


def shared(kind: str) -> bytes:
    """A file of one ADD, in which something is there MANY times, or as long."""
    w = _Writer()
    shape, short, name, long = w.ints(1, 2), w.b.CreateString("x"), w.b.CreateString("a" * MANY), w.ints(1, times=MANY)
    tensor = w.table(_TENSOR, shape=shape, name=short)
    tensors = {
        "tensors": lambda: tensor,
        "shapes": lambda: w.table(_TENSOR, shape=long, name=short),
        "signatures of shapes": lambda: w.table(_TENSOR, shape=shape, name=short, signature=long),
        "names of tensors": lambda: w.table(_TENSOR, shape=shape, name=name),
        "scales": lambda: w.table(_TENSOR, shape=shape, type=9, quantization=w.table({"scale": 2}, scale=long)),
    }
    of_tensors = [tensor, tensor, *([tensors[kind]()] * MANY if kind in tensors else ())]
    given, made = w.ints(0, 0), w.ints(1)
    reshape = {"options_type": schema.BuiltinOptions.ReshapeOptions, "options": w.table({"shape": 0}, shape=long)}
    said: dict[str, dict[str, int]] = {
        "operators": {"inputs": given, "outputs": made},
        "operands": {"inputs": long, "outputs": made},
        "results": {"inputs": given, "outputs": long},
        "options": {"inputs": given, "outputs": made, **reshape},
        "custom options": {"inputs": given, "outputs": made, "custom": name},
    }
    operator = w.table(_OPERATOR, **said.get(kind, said["operators"]))
    code = w.table({"number": 3}, number=0) if kind != "names of codes" else w.table({"name": 1}, name=name)
    ends = {of: w.ints(number, times=MANY if kind == of else 1) for of, number in (("inputs", 0), ("outputs", 1))}
    operators = [operator] * (MANY if kind in said or kind == "names of codes" else 1)
    graph = w.table(_SUBGRAPH, tensors=w.tables(of_tensors), operators=w.tables(operators), **ends)
    entries = w.tables([w.table({"name": 0}, name=name)] * (MANY if kind == "entries of signatures" else 1))
    signature = w.table({"inputs": 0, "outputs": 1, "key": 2}, inputs=entries, outputs=entries, key=name)
    parts = {
        "codes": (code, 1),
        "subgraphs": (graph, 1),
        "buffers": (w.table({}), 1),
        "signatures": (signature, int(kind == "entries of signatures")),
        "metadata": (w.table({"name": 0}, name=name), 0),
    }
    vectors = {of: w.tables([table] * (MANY if kind == of else count)) for of, (table, count) in parts.items()}
    w.b.Finish(w.table(_MODEL, version=3, **vectors), file_identifier=b"TFL3")
    return bytes(w.b.Output())
