"""Contents of a program file, read from the file itself."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.program.file import read_program
from converter.program.flatbuffer.damage import DAMAGED
from converter.program.flatbuffer.operators import OperatorFile
from converter.program.flatbuffer.schema import FILE_IDENTIFIER
from converter.program.manifest import MANIFEST, Manifest
from converter.support.errors import UsageError
from converter.support.files import open_regular

if TYPE_CHECKING:
    from converter.frontends.tflite.survey import Survey


@dataclass(frozen=True)
class Contents:
    """A program file.

    Attributes:
        path: where it is.
        file_bytes: its size.
        manifest: what it says about itself.
        operators: for each subgraph, how often each operator occurs in it and in the bodies of its loops, the most
            frequent first.
        head: which of the heads of a file of several; None of a file of one.
    """

    path: Path
    file_bytes: int
    manifest: Manifest
    operators: dict[str, dict[str, int]]
    head: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "file": str(self.path),
            "file_bytes": self.file_bytes,
            **({} if self.head is None else {"head": self.head}),
            "manifest": self.manifest.to_json(),
            "operators": self.operators,
        }


def read_contents(path: Path, head: str | None = None) -> Contents:
    """Reads a program file, or one head of a file of several; nothing of it is run.

    Raises:
        UsageError: there is no such file, it is damaged, or it is no program of Pocketune.
    """
    program = read_program(path, head)
    try:
        operators = _with_bodies(program.own(count_operators(program.data).items()))
    except DAMAGED:
        raise UsageError(
            f"{path} is damaged: its operators cannot be read. Build or copy it again", page="command-line"
        ) from None
    return Contents(path, len(program.data), program.manifest, operators, head)


@dataclass(frozen=True)
class Surveyed:
    """A `.tflite` that is no program: what an app ships, and may be trained."""

    path: Path
    signatures: Sequence[Survey]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"file": str(self.path), "signatures": [one.to_json() for one in self.signatures]}


def read_survey(path: Path) -> Surveyed | None:
    """Return what a file holds that is a `.tflite` without the manifest of a program; None for any other.

    Raises:
        UsageError: it is damaged.
    """
    if not _is_plain_file(path):
        return None
    from converter.frontends.tflite.survey import survey

    return Surveyed(path, survey(path))


def _is_plain_file(path: Path) -> bool:
    try:
        with os.fdopen(open_regular(path), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data[4:8] == FILE_IDENTIFIER and data.find(MANIFEST.encode()) < 0
    except (OSError, ValueError):  # no such file, or an empty one: what reads it says so
        return False


def count_operators(data: bytes | mmap.mmap) -> dict[str, dict[str, int]]:
    """Return how often each operator occurs in each subgraph of a TFLite file, in the file's order of subgraphs."""
    subgraphs = OperatorFile(data).subgraphs()
    return {name: dict(Counter(o.kind for o in operators).most_common()) for name, operators in subgraphs}


def _with_bodies(operators: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the subgraphs of signatures; those of loops, which are named after them, are counted with them."""
    whole: dict[str, Counter[str]] = {}
    for name, kinds in operators.items():
        whole.setdefault(name.partition("/")[0], Counter()).update(kinds)
    return {name: dict(kinds.most_common()) for name, kinds in whole.items()}
