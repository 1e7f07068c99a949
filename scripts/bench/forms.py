"""What each form of an operator costs: the figures of `converter/backend/targets/*.toml`, measured again.

    .venv/bin/python scripts/bench/forms.py                             # nanoseconds, on this machine
    .venv/bin/python scripts/bench/forms.py --arm64 DIR                 # instructions; scripts/arm64/prepare makes DIR
    .venv/bin/python scripts/bench/forms.py --arm64 DIR --library android   # after scripts/arm64/prepare_android
    .venv/bin/python scripts/bench/forms.py --builtin                   # without XNNPACK
    .venv/bin/python scripts/bench/forms.py --table zen5.toml           # for scripts/bench/machines

What is measured: converter/tools/measure/cases.py. Costs of different forms are comparable within one run only. `build
--profile measured` and `scripts/device measure` make tables of one's own devices of the same cases.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from emulated import LIBRARIES, Emulator
from rich.console import Console
from rich.table import Table

from converter.backend.targets import tables
from converter.backend.targets import target as find_target
from converter.tools.measure import Case, built, cases, figures, fitted, measured_here, processor
from scripts.arguments import writable


def instructions(chosen: Sequence[Case], emulator: Emulator) -> list[tuple[Case, float]]:
    """Return the cases, each with the instructions of a run of it on arm64, under emulation."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / f"{i}.tflite" for i in range(len(chosen))]
        for file, case in zip(files, chosen, strict=True):
            file.write_bytes(built(case))
        counts = emulator.instructions(*map(str, files))
    return [(case, float(count)) for case, count in zip(chosen, counts, strict=True)]


def main() -> None:
    """Measures all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm64", type=Path, help="count instructions with the emulated Python of this folder")
    parser.add_argument("--library", choices=LIBRARIES, default="litert", help="of that folder")
    parser.add_argument("--cpu", default="cortex-a76", help="which arm64 core's kernels run")
    parser.add_argument("--builtin", action="store_true", help="without XNNPACK")
    parser.add_argument("--only", nargs="+", default=[""], help="forms whose name contains one of these")
    parser.add_argument("--table", type=writable, help="write a target's table with the figures measured")
    parser.add_argument(
        "--like",
        choices=[name for name, text in tables().items() if "like" not in tomllib.loads(text)],
        help="the target whose table gives what was not measured",
    )
    options = parser.parse_args()
    unit = "instructions" if options.arm64 else "ns"
    chosen = [case for case in cases() if any(part in case.form for part in options.only)]
    if options.arm64:
        measured = instructions(chosen, Emulator(options.arm64, options.library, options.cpu, not options.builtin))
    else:
        measured = measured_here(chosen, not options.builtin)
    like = options.like or ("litert-2" if options.arm64 else "litert-2/x86-64")
    found = figures(measured, find_target(like))
    table = Table("form", f"{unit} per MAC or byte", "by shape")
    for form, by_shape in found.items():
        shapes = ", ".join(f"{shape}: {cost:.4f}" for shape, cost in by_shape.items())
        table.add_row(form, f"{statistics.median(by_shape.values()):.4f}", shapes)
    Console().print(table)
    if options.table:
        where = options.cpu if options.arm64 else processor()
        options.table.write_text(fitted(tables()[like], found, options.table.stem, unit, where))


if __name__ == "__main__":
    main()
