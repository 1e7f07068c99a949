"""Our training step on arm64: instructions, and misses of simulated caches, of the libraries that phones run.

    scripts/arm64/prepare DIR && scripts/arm64/prepare_android DIR
    .venv/bin/python scripts/bench/arm64 DIR --json out/bench/arm64.json                # W1 to W4, hours
    .venv/bin/python scripts/bench/arm64 DIR --workloads W1 --frozen int8 --operators   # where the instructions go
    .venv/bin/python scripts/bench/arm64 DIR --workloads W1 --caches --micro-batches 0 2 1

Counts are exact and repeatable, of one step, warmed up. They are compared with what the step's floating-point
operations need at the rate of a large constant matrix product, counted in the same run: 1 is a step that is nothing
but such products, and int8 gets below.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from emulated import LIBRARIES, Emulator
from facts import write
from operators import instructions_by_operator
from ours import built as built_step
from ours import model_flops
from rich.console import Console
from rich.table import Table
from workloads import SCHEMES, SMALL, WORKLOADS, workload

from converter.tools.measure import built, gemm
from scripts.arguments import writable

#: What a program is tuned for that the library runs.
TARGETS = {"litert": "litert-2", "android": "tflite-2.16"}


def main() -> None:
    """Counts the cells and prints the table."""
    args = _arguments()
    result: dict[str, Any] = {"kind": "arm64", "cpu": args.cpu, "rows": []}
    for row in _rows(args):
        result["rows"].append(row)
        # An hour's figures are not lost with the last cell.
        if args.json:
            write(args.json, result)
    Console(width=None if sys.stdout.isatty() else 160).print(_table(result["rows"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what scripts/arm64/prepare made")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--frozen", nargs="+", choices=("float32", "int8"), default=("float32", "int8"))
    parser.add_argument("--batch", type=int, help="rows of a step; otherwise what is usual for the workload")
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[0], help="0: the whole batch at once")
    parser.add_argument("--caches", action="store_true", help="cache misses in place of instructions")
    parser.add_argument("--operators", action="store_true", help="each operator alone as well, summed up by kind")
    parser.add_argument("--cpu", default="cortex-a76", help="which core's kernels run")
    parser.add_argument("--small", action="store_true", help="small nets, to try the measurement itself")
    parser.add_argument("--json", type=writable, help="write all figures to this file")
    return parser.parse_args()


def _rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    emulators = {library: Emulator(args.folder.resolve(), library, args.cpu) for library in args.libraries}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "program.tflite"
        file.write_bytes(built(gemm()))
        rates = {}
        if not args.caches:
            rates = {library: 2 * gemm().work / e.instructions(str(file))[0] for library, e in emulators.items()}
        for name in args.workloads:
            net = workload(name, args.batch, **(SMALL[name] if args.small else {}))
            for scheme, frozen, library, rows in product(args.schemes, args.frozen, args.libraries, args.micro_batches):
                # Nothing is frozen where everything trains.
                if (scheme, frozen) == ("full", "int8"):
                    continue
                cell = {"net": name, "trains": scheme, "batch": net.batch, "micro": rows or net.batch}
                cell |= {"frozen": frozen, "library": library}
                target = TARGETS[library]
                built_step(net, scheme, file, target, rows or None, None if frozen == "float32" else frozen)
                calls = {"train": 1} if net.batch == cell["micro"] else {"accumulate": net.batch // rows, "apply": 1}
                if args.caches:
                    yield cell | _misses(emulators[library], file, calls)
                else:
                    flops = model_flops(net, scheme, target, rows or None)
                    yield cell | _counts(emulators[library], file, calls, flops, rates[library])
                    if args.operators:
                        _show(cell, instructions_by_operator(emulators[library], file))


def _counts(emulator: Emulator, file: Path, calls: dict[str, int], flops: int, rate: float) -> dict[str, Any]:
    counted = emulator.instructions(*(f"{file}:{name}" for name in calls))
    instructions = sum(count * each for count, each in zip(calls.values(), counted, strict=True))
    return {
        "FLOP": flops,
        "instructions": instructions,
        "FLOP / instruction": round(flops / instructions, 2),
        "× GEMM": round(instructions * rate / flops, 3),
    }


def _misses(emulator: Emulator, file: Path, calls: dict[str, int]) -> dict[str, int]:
    counted = emulator.caches(*(f"{file}:{name}" for name in calls))
    step = {key: sum(n * each[key] for n, each in zip(calls.values(), counted, strict=True)) for key in counted[0]}
    return {"accesses": step["accesses"]} | {f"{level} misses": step[level.lower()] for level in ("L1", "L2", "L3")}


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value / 1e6:,.1f} M" if _is_large(value) else str(value) for value in row.values()))
    return table


def _is_large(value: Any) -> bool:
    return isinstance(value, int) and value >= 100_000


def _show(cell: dict[str, Any], counts: dict[tuple[str, str], int]) -> None:
    table = Table("operator", "phase", "M instructions", title=" ".join(map(str, cell.values())))
    for (kind, phase), count in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(kind, phase, f"{count / 1e6:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
