"""Result files of the harness, written by its own records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import converter
from converter.driver.program import Program
from scripts.harness.device import Conditions, Facts
from scripts.harness.log import Result, Run
from scripts.harness.plan import Setup, Variant
from tests.cli.factories import good, wide

GOOD, WIDE = "tests.cli.factories:good", "tests.cli.factories:wide"
STEPS, WARMUP = 6, 2


@cache
def program(name: str, update: str = "head") -> Program:
    """Of a small model, for the batch of the command line."""
    return converter.build({"good": good, "wide": wide}[name](), update=update, check=False)


def results_of(
    folder: Path,
    programs: dict[str, list[float]],
    model: str = "Pixel 8",
    is_emulator: bool = False,
    available: int | None = None,
    name: str = "results.jsonl",
    threads: int = 1,
) -> Path:
    """A result file with a job for each program file in the folder, of these milliseconds a step behind the warm-up."""
    facts = Facts("adb", "SERIAL", model, is_emulator=is_emulator)
    now = Conditions(available_bytes=available)
    setup = Setup(STEPS, 1, WARMUP, 0.01, "seed 0")
    when = "2026-01-01T00:00:00"
    records: list[Run | Result] = [Run("s", "plan", "0", "", facts, now, (), setup, None, None, when)]
    for file, times in programs.items():
        sha256 = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        ms = (tuple([1e4] * WARMUP + times),)
        variant = Variant("", file, sha256, 8, 8, "cpu", threads)
        runs = ("litert", "cpu", "cpu", None)
        records.append(Result(f"j-{file}", "s", variant, 0, 0, when, 1.0, *runs, ms, ms, ms, 4096, now, now))
    path = folder / name
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    return path
