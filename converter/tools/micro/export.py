"""Export of a program to C++: a folder that is a library of Arduino and a component of ESP-IDF."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from converter.backend.schedule.micro_arena import micro_arena
from converter.backend.targets import target
from converter.program.file import Readable, read_program
from converter.program.flatbuffer.damage import sound_tables
from converter.program.manifest import INITIAL
from converter.support.files import write_together
from converter.tools.micro.body import body
from converter.tools.micro.entries import check, entries, left_out
from converter.tools.micro.header import header
from converter.tools.micro.joined import joined
from converter.tools.micro.library import library
from converter.tools.micro.memory import memory_of

#: Sources that are the same for every program.
_SESSION = ("pocketune.cc", "pocketune.h", "pocketune_sha256.cc", "pocketune_sha256.h", "pocketune_state.cc")
#: What an arena has beyond what is predicted: a share of it, and bytes. One that lacks more than that share is refused:
#: predictions were never so far off, and kernels write where they get no room for what they keep.
_SPARE, _LEAST_SPARE = 32, 256
#: No smaller arena holds what the interpreter keeps of itself, which it does not check.
_LEAST = 2048


@dataclass(frozen=True)
class ExportedC:
    """What was written.

    Attributes:
        files: by path in the folder, with their bytes.
        arenas: bytes that each signature needs on a board, as predicted.
        arena: bytes that a sketch gives, with what there is to spare.
        state: bytes of the state, gradients and features that a session keeps beside its arena.
        flash: bytes of the models and of the state as built.
        operators: the builtins that are registered.
        left_out: signatures that no session in C++ calls.
    """

    files: Mapping[str, int]
    arenas: Mapping[str, int]
    arena: int
    state: int
    flash: int
    operators: tuple[str, ...]
    left_out: tuple[str, ...]


def export_c(program: Readable, folder: str | os.PathLike) -> ExportedC:
    """Write a program as C++ for TensorFlow Lite Micro.

    Args:
        program: one that is built for the target `tflm`, stateless: its path or bytes.
        folder: is made; files that it holds of an export before are replaced.

    Raises:
        UsageError: it is no such program, or the folder cannot be written.
        UnsupportedError: a signature takes or gives what no session in C++ knows.
    """
    file = read_program(program)
    check(file.manifest)
    records = target("tflm").records["board"]
    with sound_tables():
        parts = entries(file)
        models = joined(file, parts)
        arenas = {
            entry.name: micro_arena(models.data, records, start).size
            for entry, start in zip(parts, models.starts, strict=True)
        }
    largest = max(arenas.values())
    arena = -(-(largest + largest // _SPARE + _LEAST_SPARE) // 16) * 16
    least = max(_LEAST, largest - largest // _SPARE)
    memory = memory_of(file.manifest)
    kept = memory.state_bytes + memory.gradient_bytes + file.manifest.batch * memory.feature_bytes
    flash = len(models.data) + sum(len(file.metadata[INITIAL + t.tensor]) for t in file.manifest.state_tensors)
    sources = {name: (resources.files(__package__) / "cpp" / name).read_text() for name in _SESSION}
    sources["pocketune_model.h"] = header(file, max(arena, least), least, memory)
    sources["pocketune_model.cc"] = body(file, parts, models, memory)
    sizes = {"arena (RAM)": arena, "state (RAM)": kept, "models and state as built (flash)": flash}
    around = library(file.manifest, sorted(name for name in sources if name.endswith(".cc")), sizes)
    _write(Path(folder), around)
    _write(Path(folder) / "src", sources)
    written = around | {f"src/{name}": text for name, text in sources.items()}
    nbytes = {name: len(text.encode()) for name, text in written.items()}
    return ExportedC(nbytes, arenas, arena, kept, flash, models.operators, left_out(file.manifest))


def _write(folder: Path, files: Mapping[str, str]) -> None:
    write_together(folder, {name: text.encode() for name, text in files.items()})
