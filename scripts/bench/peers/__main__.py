"""Our training step against other frameworks' on the same machine: time, memory, losses.

    scripts/setup test && .venv/bin/python scripts/bench/peers                     # W1 to W4, all schemes
    .venv/bin/python scripts/bench/peers --workloads W1 --peers tensorflow torch flex --json out/peers.json
    .venv/bin/python scripts/bench/peers --growth batch --workloads W1 --json out/growth.json

Every side starts from the same weights, trains the same tensors on the same batch and has a process of its own, pinned
to the same CPUs. The losses of its first steps are compared with JAX's before anything is timed: a fast step that
computes something else is worth nothing. Then the sides take turns, so that what else the machine does falls on all.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import growth
import tables
from facts import machine, write
from measured import LEARNING_RATE
from ours import built
from race import INT8_TOLERANCE, PEERS, REFERENCE, TOLERANCE, USUAL, command, race
from rich.console import Console
from task import Task
from workloads import SCHEMES, SMALL, WORKLOADS, Workload, workload

from scripts.arguments import writable

OURS = Path(__file__).resolve().parents[1] / "ours.py"

note = Console(stderr=True, highlight=False)


def main() -> int:
    """Measures the cells and prints the table. 1: a side failed."""
    args = _arguments()
    result = {"machine": machine(), "remark": args.remark} | {
        name: getattr(args, name)
        for name in ("threads", "target", "micro_batch", "memory_budget", "frozen", "cached", "steps", "small")
    }
    if args.growth:
        result |= {"kind": "growth", "axis": args.growth}
        rows, show = growth.rows(args, note), tables.show_growth
    else:
        result |= {"kind": "peers", "learning_rate": LEARNING_RATE}
        rows, show = _cells(args), tables.show
    result["rows"] = []
    for row in rows:
        result["rows"].append(row)
        # An hour's figures are not lost with the last cell.
        if args.json:
            write(args.json, result)
    show(result)
    return int(any(side["error"] for row in result["rows"] for side in row["sides"].values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=USUAL, help=f"usually {', '.join(USUAL)}")
    parser.add_argument("--growth", choices=growth.AXES, help="our step alone, against the size of the work")
    parser.add_argument("--batch", type=int, help="rows of a step; otherwise what is usual for the workload")
    parser.add_argument("--micro-batch", type=int, help="of our program")
    parser.add_argument("--memory-budget", help="of our program, which then chooses how it keeps to it: 225MiB")
    parser.add_argument("--frozen", choices=["int8"], help="type of our program's frozen layers")
    parser.add_argument("--cached", action="store_true", help="ours trains on cached features, as in later epochs")
    parser.add_argument("--target", default="litert-2/x86-64", help="what our program is tuned for")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each side")
    parser.add_argument("--turn", type=int, default=2, help="steps before it is the next side's turn")
    parser.add_argument("--threads", type=int, default=1, help="of each side, and CPUs it is pinned to")
    parser.add_argument("--small", action="store_true", help="small nets, to try the measurement itself")
    parser.add_argument("--here", action="store_true", help="run all peers in this environment instead of their own")
    parser.add_argument("--remark", default="", help="what a reader of the figures should know")
    parser.add_argument("--json", type=writable, help="write all figures to this file")
    return parser.parse_args()


def _cells(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in args.workloads:
        options = SMALL[name] if args.small else {}
        net = workload(name, args.batch, **options)
        with tempfile.TemporaryDirectory() as scratch:
            task = Task(
                Path(scratch) / "task.npz", name, {"batch": net.batch, **options}, net.kind, net.sizes, net.trained
            )
            task.write(net.weights, net.x, net.y)
            for scheme in args.schemes:
                yield _cell(net, task, scheme, args)


def _cell(net: Workload, task: Task, scheme: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return all sides of one workload and scheme."""
    note.print(f"[bold]{net.name} {scheme}[/]: building, checking, measuring")
    program = task.file.with_suffix(".tflite")
    facts = built(net, scheme, program, args.target, args.micro_batch, args.frozen, args.cached, args.memory_budget)
    commands = {"ours": [sys.executable, str(OURS), str(program), str(task.file)]}
    commands |= {peer: command(peer, task.file, scheme, args.here) for peer in dict.fromkeys([REFERENCE, *args.peers])}
    tolerance = INT8_TOLERANCE if args.frozen == "int8" and scheme != "full" else TOLERANCE
    measured = race(commands, {"ours", *args.peers}, args.steps, args.turn, args.threads, tolerance)
    return {"workload": net.name, "scheme": scheme, "batch": net.batch, **facts, **measured}


if __name__ == "__main__":
    sys.exit(main())
