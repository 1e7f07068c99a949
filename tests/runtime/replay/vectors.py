"""Memories that all languages make to the byte: `python -m tests.runtime.replay.vectors` writes ../memories.json.

The tests of the trainers in Kotlin and TypeScript read that file: they offer the same rows, and compare file and rows.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from converter.runtime.data.examples import Examples
from converter.runtime.data.order import Random
from converter.runtime.replay.class_tags import UNKNOWN, tags_of
from converter.runtime.replay.contents import Contents, Owner, Part, RowTensor, offer
from converter.runtime.replay.memory_file import capacities, pack

FILE = Path(__file__).parents[1] / "memories.json"
OWNER = Owner("0123456789abcdef", "ab" * 32, "", 1)
WEIGHT = RowTensor("weight", "float32", ())
INPUTS = (RowTensor("x", "float32", (2, 3)), RowTensor("größe", "bool", (1,)), RowTensor("y", "int32", ()), WEIGHT)
FEATURES = (RowTensor("features", "int8", (5,)), RowTensor("y", "int32", ()), WEIGHT)
VALUES = (RowTensor("x", "float32", (2,)), RowTensor("y", "float32", (1,)), WEIGHT)
CASES: tuple[dict[str, Any], ...] = (
    {
        "keeps": "inputs",
        "limit": 2400,
        "held_out": 100_000,
        "seed": 0,
        "classes": 3,
        "replay": INPUTS,
        "heldout": INPUTS,
    },
    {
        "keeps": "features",
        "limit": 2700,
        "held_out": 250_000,
        "seed": 7,
        "classes": 4,
        "replay": FEATURES,
        "heldout": INPUTS,
    },
    {
        "keeps": "inputs",
        "limit": 1600,
        "held_out": 0,
        "seed": 1 << 40,
        "classes": 1,
        "replay": VALUES,
        "heldout": VALUES,
    },
)
#: What the classes are called; of one nobody knows.
NAMES = ("red", "grün", "", "blue")
#: Rows of each call.
CALLS = (1, 7, 50, 42)


def labels(number: np.ndarray, classes: int) -> np.ndarray:
    """The labels of rows, the higher the rarer; the last class comes late."""
    found = np.where(number % 7 < 4, 0, np.where(number % 7 < 6, 1, 2)) % classes
    return np.where((classes == 4) & (number >= 60) & (number % 9 == 0), 3, found)


def rows(number: np.ndarray, tensors: tuple[RowTensor, ...], classes: int) -> Examples:
    """Rows by their numbers, which any language computes without rounding; some weigh nothing."""
    arrays = {}
    for i, tensor in enumerate(tensors):
        size = int(np.prod(tensor.shape))
        element = number[:, None] * 31 + i * 7 + np.arange(size)
        if tensor.dtype == "float32":
            values = (element % 64 - 32) / 8
        else:
            values = element % 2 if tensor.dtype == "bool" else element % 100 - 50
        if tensor.name == "y" and tensor.dtype == "int32":
            values = labels(number, classes)
        if tensor.name == "weight":
            values = np.where(number % 13 == 10, 0, 1 + number % 3)
        arrays[tensor.name] = values.reshape(len(number), *tensor.shape).astype(tensor.dtype)
    return Examples(arrays)


def begun(case: dict[str, Any]) -> Contents:
    """Return empty contents."""
    numbers = case["keeps"], case["limit"], case["held_out"], case["seed"]
    empty = [Part.empty(case[name], 0, case["classes"]) for name in ("replay", "heldout")]
    room = capacities(Contents(OWNER, *numbers, 0, 0, *empty, ()))
    parts = [Part.empty(part.tensors, rows, case["classes"]) for part, rows in zip(empty, room, strict=True)]
    return Contents(OWNER, *numbers, Random.seeded(case["seed"]).state, 0, *parts, (UNKNOWN,) * case["classes"])


def after(contents: Contents, count: int, case: dict[str, Any]) -> Contents:
    """Return the contents after so many more rows."""
    number = contents.seen + np.arange(count)
    inputs = rows(number, case["heldout"], case["classes"])
    found = labels(number, case["classes"])
    offered = offer(contents, found, inputs.arrays["weight"] > 0)
    after = offered.contents(found, rows(number, case["replay"], case["classes"]), inputs)
    return after.tagged(tags_of(NAMES[: case["classes"]]))


def vectors() -> list[dict[str, Any]]:
    """Return what stands in the file."""
    found = []
    for case in CASES:
        contents, calls = begun(case), []
        for count in CALLS:
            contents = after(contents, count, case)
            file = pack(contents)
            kept = {name: part.rows["number"].tolist() for name, part in parts(contents)}
            calls.append({"rows": count, "bytes": len(file), "sha256": hashlib.sha256(file).hexdigest(), **kept})
        tensors = {
            name: [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in case[name]]
            for name in ("replay", "heldout")
        }
        room = [part.reservoir.capacity for _, part in parts(contents)]
        found.append(case | {"tensors": tensors, "capacities": room, "calls": calls})
        for name in tensors:
            del found[-1][name]
    return found


def parts(contents: Contents) -> tuple[tuple[str, Part], ...]:
    """Return the parts by name."""
    return ("replay", contents.replay), ("heldout", contents.heldout)


if __name__ == "__main__":
    owner = {"forward": OWNER.forward, "frozen": OWNER.frozen, "int8": OWNER.int8, "version": OWNER.version}
    FILE.write_text(
        json.dumps({"program": owner, "names": NAMES, "memories": vectors()}, ensure_ascii=False, indent=1) + "\n"
    )
