"""Damaged programs with mended checksums, exported and run on a Cortex-M4 that QEMU emulates.

    MICRO_SOURCES=FOLDER python -m tests.tools.micro.hostile mlp.tflite --cases 100

Most are refused by `export-c`; what goes through is built and makes a step. A board that stops in a fault, aborts or
hangs is printed with the number of its case.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from converter.program.checksum import with_new_checksum
from converter.program.file import read_program
from converter.support.errors import PocketuneError
from converter.tools.micro.entries import row_values
from converter.tools.micro.export import export_c
from scripts.micro.boards import BOARDS
from scripts.micro.building import firmware
from scripts.micro.device import Device, command
from tests.tflite_frontend.mutations import mutated

BOARD = "cortex-m4"
SIZES = {"ARENA_BYTES": 1 << 18, "VALUES_BYTES": 1 << 16, "RESULT_BYTES": 1 << 16}


def cases(program: bytes, numbers: Iterable[int], sources: Path) -> Counter[str]:
    """Return how many cases came to what: `refused`, `the same` as no damage, `ran`, or `wrong`, which is printed."""
    found = Counter[str]()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        export_c(program, folder / "c")
        sound = _exported(folder)
        for number in numbers:
            damaged = mutated(program, number)
            with suppress(ValueError):  # where the entry is not there any more
                damaged = with_new_checksum(damaged)
            try:
                export_c(damaged, folder / "c")
            except PocketuneError as error:
                found["refused" if str(error) else "wrong"] += 1
                continue
            if _exported(folder) == sound:
                found["the same"] += 1
                continue
            said = _ran(damaged, folder, sources)
            found["ran" if said is None else "wrong"] += 1
            if said is not None:
                print(f"case {number}: {said}", flush=True)
    return found


def _exported(folder: Path) -> list[bytes]:
    return [(folder / "c/src" / name).read_bytes() for name in ("pocketune_model.cc", "pocketune_model.h")]


def _ran(damaged: bytes, folder: Path, sources: Path) -> str | None:
    """Return what went wrong on the board; None where each call ended in a status."""
    elf = firmware(folder / "c", sources, BOARDS[BOARD], sources / BOARD, SIZES)
    rng, specs = np.random.default_rng(0), row_values(read_program(damaged).manifest)
    row = [np.ones(s.shape[1:], s.dtype) if s.dtype == "int32" else rng.random(s.shape[1:], np.float32) for s in specs]
    device = Device(elf, BOARDS[BOARD], folder)
    try:
        process = device.start([command("t", len(specs), [row]), command("i", len(specs), [row[:1]])])
        said, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        return "hangs"
    # 1: `begin` gave a status, after which a sketch has no session.
    return None if process.returncode in (0, 1) else f"exit {process.returncode}: {said.strip()}"


def main() -> int:
    """Run all cases; return 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.cases)
    found = cases(args.program.read_bytes(), numbers, Path(os.environ["MICRO_SOURCES"]))
    print(", ".join(f"{count} {word}" for word, count in sorted(found.items())))
    return int("wrong" in found)


if __name__ == "__main__":
    sys.exit(main())
