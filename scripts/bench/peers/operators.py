"""Where the time of our steps goes on this machine: by phase, and by the operators that take most.

    .venv/bin/python scripts/bench/peers/operators.py --json scripts/bench/results/operators.json

The profile of `converter profile`: each operator alone, one core, as its share of the step. The step itself is compared
with what its floating-point operations need at the rate of a large constant matrix product, measured beside it: 1 is a
step that is nothing but such products, and what no order of operators gets below; int8 does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"

import measured
from facts import machine, write
from ours import built, model_flops
from tables import show_rows
from workloads import SCHEMES, SMALL, WORKLOADS, workload

from scripts.arguments import writable

#: Operators below this share of a step are not named.
_LEAST = 0.03
TARGET = "litert-2/x86-64"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="small nets, to try the measurement itself")
    parser.add_argument("--json", type=writable, help="write all figures to this file")
    args = parser.parse_args()
    measured.pin(1)
    result: dict[str, Any] = {"kind": "operators", "machine": machine(), "threads": 1, "target": TARGET}
    result |= {"small": args.small, "rows": []}
    for name in args.workloads:
        net = workload(name, **(SMALL[name] if args.small else {}))
        for scheme in args.schemes:
            for frozen in (None,) if scheme == "full" else (None, "int8"):
                with tempfile.TemporaryDirectory() as scratch:
                    file = Path(scratch) / "program.tflite"
                    built(net, scheme, file, TARGET, frozen=frozen)
                    cell = {"net": f"{name} b{net.batch}", "trains": scheme, "frozen": frozen or "float32"}
                    result["rows"].append(cell | _profiled(file, model_flops(net, scheme, TARGET), args.steps))
                if args.json:
                    write(args.json, result)
    show_rows(result["rows"])


def _profiled(file: Path, flops: int, steps: int) -> dict[str, Any]:
    """Return a program's step against its products, and its shares in percent."""
    from converter.program.origins import PHASES
    from converter.tools.measure.profile import profile

    # Before and after: the machine may be slower for a while, for both.
    before = _milliseconds_per_flop()
    measured = profile(file, steps)
    least = flops * min(before, _milliseconds_per_flop())
    operators = {kind: sum(times.values()) / measured.step for kind, times in measured.by("operator").items()}
    phases = {p: sum(row.share for row in measured.rows if row.phase == p) for p in PHASES}
    most = [f"{kind} {100 * share:.0f}" for kind, share in operators.items() if share >= _LEAST]
    row: dict[str, Any] = {"GFLOP": round(flops / 1e9, 1), "× GEMM": round(measured.step / least, 2)}
    return row | {p: round(100 * share) for p, share in phases.items()} | {"operators": ", ".join(most)}


def _milliseconds_per_flop() -> float:
    """Return the cost of a large constant matrix product."""
    from converter.tools.measure import built, gemm, nanoseconds

    return nanoseconds(built(gemm()), xnnpack=True) / 1e6 / (2 * gemm().work)


if __name__ == "__main__":
    main()
