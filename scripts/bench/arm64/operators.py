"""Instructions of each operator of a step alone: where those of the whole step go."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from emulated import Emulator

from converter.program.file import read_program
from converter.program.flatbuffer.operators import OperatorFile
from converter.program.origins import read_origins
from converter.tools.measure.profile import FREE

#: Programs of one operator that one emulated process counts.
_AT_ONCE = 100


def instructions_by_operator(emulator: Emulator, file: Path) -> Counter[tuple[str, str]]:
    """Return the cost of one call of each signature: kind of operator and phase -> instructions, of all alone.

    Alone, an operator is charged for copies at its border that the step may not make.
    """
    program = read_program(file)
    origins = read_origins(program)
    totals: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        files: dict[tuple, Path] = {}
        found = []
        for name, operators in OperatorFile(program.data).subgraphs():
            for origin, operator in zip(origins.get(name, ()), operators, strict=name in origins):
                if operator.kind in FREE:
                    continue
                if operator.key not in files:
                    files[operator.key] = Path(scratch) / f"{len(files)}.tflite"
                    files[operator.key].write_bytes(operator.program())
                found.append((operator.kind, origin.phase, files[operator.key]))
        different = list(files.values())
        counts: dict[Path, int] = {}
        for start in range(0, len(different), _AT_ONCE):
            some = different[start : start + _AT_ONCE]
            counts |= zip(some, emulator.instructions(*map(str, some)), strict=True)
    for kind, phase, path in found:
        totals[kind, phase] += counts[path]
    return totals
