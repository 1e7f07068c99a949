"""Time to accuracy on arm64: instructions of the library that phones run, until a net is as good as full training.

    scripts/pretrained && scripts/arm64/prepare DIR
    .venv/bin/python scripts/bench/headline/arm64.py DIR --json out/headline-arm64.json

How many calls a side of ours takes is what results.json says; what each takes is counted under emulation on
Cortex-A76's kernels, the same in each run to 0.05%. A phone's programs are tuned for arm64 and not for the machine that
measured the accuracies, which they keep but for rounding. What a session computes beside the program is not counted:
the least squares of a discriminant are a few hundredths of its features.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from emulated import Emulator
from programs import program_of
from sides import OURS
from tasks import TASKS

from scripts.arguments import writable
from scripts.bench.facts import checkout, write

import keras  # isort: skip  after tasks, which choose its backend

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Counts each side that arrives, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what scripts/arm64/prepare made")
    parser.add_argument("--task", action="append", choices=TASKS, help="only that one; repeat it for more")
    parser.add_argument("--json", type=writable, default=Path("out/headline-arm64.json"), help="the file to write")
    asked = parser.parse_args()
    emulator, result = Emulator(asked.folder.resolve()), json.loads((HERE / "results.json").read_text())
    commit, changed = checkout()
    found: list[dict[str, Any]] = []
    for name in asked.task or dict.fromkeys(row["task"] for row in result["rows"]):
        arrived = [row for row in result["rows"] if row["task"] == name and row["side"] in OURS and row["cpu_s"]]
        for row in counted(name, arrived, emulator):
            found.append(row)
            print(f"{name}, {row['side']}: {row['instructions'] / 1e6:,.1f} M instructions, {row['calls']}", flush=True)
            write(asked.json, {"commit": commit, "changed": changed, "cpu": emulator.cpu, "rows": found})


def counted(name: str, arrived: list[dict[str, Any]], emulator: Emulator) -> Any:
    """Yield for each side of a task the calls until it arrives, and their instructions."""
    task, split = TASKS[name], TASKS[name].split(1)
    keras.utils.set_random_seed(0)
    model = task.build()
    with TemporaryDirectory() as folder:
        for row in arrived:
            file = Path(folder) / "program.tflite"
            program_of(task, model, OURS[row["side"]], split, "litert-2").write(file)
            calls = OURS[row["side"]].calls(row["evaluation"], len(split.samples[0].y), task.batch)
            each = emulator.instructions(*(f"{file}:{signature}" for signature in calls))
            total = sum(many * one for many, one in zip(calls.values(), each, strict=True))
            yield {"task": name, "side": row["side"], "calls": calls, "instructions": total}


if __name__ == "__main__":
    main()
