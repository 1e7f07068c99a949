"""Our step against the size of the work: batch, image side, depth, sequence length."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from math import log
from pathlib import Path
from typing import Any

from ours import built, model_flops
from race import Side
from rich.console import Console
from task import Task
from workloads import workload

#: axis -> which workloads have it, the option of the workload, its values.
AXES: dict[str, tuple[tuple[str, ...], str, tuple[int, ...]]] = {
    "batch": (("W1", "W2", "W3", "W4"), "batch", (1, 2, 4, 8, 16, 32, 64)),
    "side": (("W1", "W2"), "size", (96, 128, 160, 192, 224)),
    "depth": (("W3", "W4"), "layers", (2, 4, 8, 16)),
    "length": (("W3", "W4"), "length", (32, 64, 128, 256, 512)),
}


def rows(args: argparse.Namespace, note: Console) -> Iterator[dict[str, Any]]:
    """Yield a row for each workload, scheme and value, with the exponents against the row before."""
    names, option, values = AXES[args.growth]
    for name in args.workloads:
        for scheme in args.schemes if name in names else ():
            before = None
            for value in values:
                note.print(f"[bold]{name} {scheme}[/] {args.growth} {value}")
                row = _row(name, scheme, {"batch": args.batch, option: value}, args)
                row |= {"axis": args.growth, "value": value}
                row["exponents"] = _exponents(before, row)
                yield row
                before = row


def _row(name: str, scheme: str, options: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    net = workload(name, **options)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        task = Task(Path(scratch) / "task.npz", name, options, net.kind, net.sizes, net.trained)
        task.write({}, net.x, net.y)
        program = task.file.with_suffix(".tflite")
        micro_batch = None if args.micro_batch is None else min(args.micro_batch, net.batch)
        facts = built(net, scheme, program, args.target, micro_batch, args.frozen)
        flops = model_flops(net, scheme, args.target, micro_batch)
        del net
        ours = Path(__file__).resolve().parents[1] / "ours.py"
        side = Side("ours", [sys.executable, str(ours), str(program), str(task.file)], args.threads, stack)
        if side.is_alive:
            side.run(args.steps)
        side.finish()
    return {"workload": name, "scheme": scheme, "flops": flops, **facts, "sides": {"ours": side.result}}


def _exponents(before: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, float]:
    """Print by which power of the size the work grew since the row before, and of the work time and memory."""
    if before is None:
        return {}
    work = log(row["flops"] / before["flops"])
    exponents = {"work": round(work / log(row["value"] / before["value"]), 3)}
    if any(r["sides"]["ours"]["error"] for r in (before, row)):
        return exponents

    def grew(figure: Any) -> float:
        return round(log(figure(row["sides"]["ours"]) / figure(before["sides"]["ours"])) / work, 3)

    return exponents | {
        "time": grew(lambda side: side["cpu_ms"]["median"]),
        "memory": grew(lambda side: max(side["memory"]["growth"]["anon"], 1)),
    }
