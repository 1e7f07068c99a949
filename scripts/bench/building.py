"""What building a program takes: CPU time, and the memory that the process grows by, against the bytes of the weights.

    .venv/bin/python scripts/bench/building.py                                      # W1 to W4, a minute
    .venv/bin/python scripts/bench/building.py --frozen int8 --json scripts/bench/results/building-2-int8.json
    .venv/bin/python scripts/bench/building.py --workloads mobilenet_v2 resnet50 encoder --schemes full   # of PyTorch

Each build has a process of its own, which has built a small net before: what is imported and made but once in a
process, whatever its models are, does not count. The program offers nothing but its step; it is written to a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measured
from facts import machine, write
from ours import built
from rich.console import Console
from rich.table import Table
from workloads import SCHEMES, SMALL, WORKLOADS, workload

from converter.support.collecting import give_back
from scripts.arguments import writable

#: Modules of PyTorch, by their names in torch_modules.py.
OF_TORCH = ("mobilenet_v2", "resnet50", "encoder")


def main() -> None:
    """Measures the builds one after the other and prints the table."""
    args = _arguments()
    if args.alone:
        print(json.dumps(_built(args.workloads[0], args.schemes[0], args)))
        return
    result = {"kind": "building", "machine": machine(), "remark": args.remark, "target": args.target, "rows": []}
    for name in args.workloads:
        for scheme in args.schemes:
            if scheme == "full" and args.frozen is not None:  # nothing is frozen there
                continue
            options = ["--workloads", name, "--schemes", scheme, "--target", args.target]
            options += ["--frozen", args.frozen] if args.frozen else []
            options += ["--small"] if args.small else []
            command = [sys.executable, __file__, "--alone", *options]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            result["rows"].append(json.loads(said))
    if args.json:
        write(args.json, result)
    table = Table(*result["rows"][0])
    for row in result["rows"]:
        table.add_row(*(f"{value}" for value in row.values()))
    Console(width=120).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS, *OF_TORCH], default=WORKLOADS)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--frozen", choices=["int8"], help="type of frozen layers")
    parser.add_argument("--target", default="litert-2/x86-64", help="what the program is tuned for")
    parser.add_argument("--small", action="store_true", help="small nets, to try the measurement itself")
    parser.add_argument("--remark", default="", help="what a reader of the figures should know")
    parser.add_argument("--json", type=writable, help="write all figures to this file")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _built(name: str, scheme: str, args: argparse.Namespace) -> dict[str, Any]:
    """Build once, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.tflite"
        title, model, build = (_module if name in OF_TORCH else _workload)(name, scheme, file, args)
        give_back()  # else the build could take what is free in this process
        start = time.process_time()
        with measured.growth() as grown:
            build()
        return {
            "net": title,
            "trains": scheme,
            "frozen": args.frozen or "float32",
            "model MB": round(model / 1e6, 1),
            "file MB": round(file.stat().st_size / 1e6, 1),
            "CPU s": round(time.process_time() - start, 2),
            "peak MB": round(grown() / 1e6, 1),
            "× model": round(grown() / model, 2),
        }


def _workload(name: str, scheme: str, file: Path, args: argparse.Namespace) -> tuple[str, int, Callable[[], object]]:
    """The title of a JAX net, the bytes of its weights, and what builds it; a small one has been built."""
    built(workload("W1", **SMALL["W1"]), scheme, file, args.target, frozen=args.frozen)
    net = workload(name, **(SMALL[name] if args.small else {}))
    model = sum(array.nbytes for array in net.weights.values())
    return f"{name} b{net.batch}", model, lambda: built(net, scheme, file, args.target, frozen=args.frozen)


def _module(name: str, scheme: str, file: Path, args: argparse.Namespace) -> tuple[str, int, Callable[[], object]]:
    """The same of a PyTorch module."""
    import torch_modules as of_torch

    usual, small = of_torch.MODULES[name]
    of_torch.built(*of_torch.MODULES["mobilenet_v2"][1](), scheme, file, args.target)
    module, example = (small if args.small else usual)()
    build = partial(of_torch.built, module, example, scheme, file, args.target)
    return f"{name} b{of_torch.BATCH}", of_torch.weights_of(module), build


if __name__ == "__main__":
    main()
