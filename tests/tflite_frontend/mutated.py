"""Mutated TFLite files, each read and now and then built in a process of its own, which is watched.

    python -m tests.tflite_frontend.mutated FILE... --cases 100000 --from 0 --record cases.csv

A case is a number, from which follow the file, what is changed of it and what is asked for. None may crash, hang, or
take more than SECONDS of CPU and BYTES of memory, in all processes that it starts. What went wrong is printed with its
number; a number alone (`--cases 1 --from N`) does it again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import pocketune
from converter.frontends import tflite as tflite_frontend
from converter.ir import Graph
from converter.support.errors import PocketuneError
from tests.tflite_frontend.mutations import mutated

#: What a case may take: seconds of CPU, by the clock twice as many, and bytes that are resident.
SECONDS, BYTES = 30, 1 << 30
#: What becomes of a case: refused with a sentence, read, built and trained a step, or anything else.
OUTCOMES = ("refused", "read", "trained", "wrong")
#: Of so many cases one builds a whole program, which runs the file's operators.
_BUILT = 100
#: How many of the worst are printed.
_PRINTED = 5


@dataclass(frozen=True)
class Case:
    """What became of a case.

    Attributes:
        number: of the case.
        outcome: one of OUTCOMES.
        cpu: seconds, of all its processes.
        clock: seconds.
        peak: MiB of the larger of its processes.
        said: what went wrong.
    """

    number: int
    outcome: str
    cpu: float
    clock: float
    peak: float
    said: str = ""


def builds(number: int) -> bool:
    """Return whether a case builds a whole program."""
    return random.Random(-number - 1).random() < 1 / _BUILT


def read(path: Path, number: int) -> str:
    """Read a file as `build` does, and now and then build, train and export; return what came of it, in a word."""
    rng = random.Random(number + 1)
    rows = rng.choice((1, 2))
    try:
        model = tflite_frontend.Model(path, classes=rng.choice((None, 3)))
        graph, _ = model.graph(rows)
        return _built(model, graph, rows, rng) if builds(number) else "read"
    except PocketuneError:
        return "refused"


def _built(model: tflite_frontend.Model, graph: Graph, rows: int, rng: random.Random) -> str:
    losses = dict.fromkeys(graph.outputs, "mse") if len(graph.outputs) > 1 else "mse"
    how: dict[str, Any] = {"update": rng.choice(("head", "last-2", "full")), "micro_batch": rng.choice((None, 1))}
    program = pocketune.build(model, loss=None if model.classes else losses, batch=rows, **how)  # which runs a step
    if rng.random() < 0.3:
        program.export_inference(Path(model.path).with_suffix(".out"))
    return "trained"


def watched(data: bytes, number: int, folder: Path) -> Case:
    """Return what becomes of a file in a process of its own."""
    path, said = folder / "case.tflite", folder / "said"
    path.write_bytes(data)
    said.write_text("")
    started = time.perf_counter()
    child = os.fork()
    if not child:
        signal.alarm(2 * SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        outcome = "wrong"
        try:
            outcome = read(path, number)
        except BaseException:
            said.write_text("".join(traceback.format_exc().splitlines(keepends=True)[-6:]))
        os._exit(OUTCOMES.index(outcome))
    _, status, used = os.wait4(child, 0)
    cpu, clock, peak = used.ru_utime + used.ru_stime, time.perf_counter() - started, used.ru_maxrss / 1024
    outcome, problem = "wrong", said.read_text()
    if os.WIFEXITED(status):
        outcome = OUTCOMES[os.WEXITSTATUS(status)]
    else:
        problem = f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    if cpu > SECONDS or peak * 2**20 > BYTES:
        outcome, problem = "wrong", f"{outcome} {problem}, too much"
    return Case(number, outcome, round(cpu, 3), round(clock, 3), round(peak, 1), problem)


def run(files: Sequence[bytes], numbers: Sequence[int], record: Path | None = None) -> list[Case]:
    """Return what becomes of cases, written to a table while they run; what goes wrong is printed.

    Those that build come last: the process that theirs are copies of has what a build imports.
    """
    done = list[Case]()
    with tempfile.TemporaryDirectory() as folder, (record or Path(os.devnull)).open("a") as table:
        for number in sorted(numbers, key=builds):
            if builds(number):
                importlib.import_module("jax.numpy")
            case = watched(mutated(files[number % len(files)], number), number, Path(folder))
            print(*astuple(case)[:-1], sep=",", file=table, flush=True)
            if case.outcome == "wrong":
                took = f"{case.cpu} s, {case.peak} MiB"
                print(f"case {number}, file {number % len(files)}, {took}: {case.said}", flush=True)
            done.append(case)
    return done


def summary(done: Sequence[Case]) -> str:
    """Return how many cases came to what, and the worst by each measure."""
    counts = Counter(case.outcome for case in done)
    lines = [", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)]
    for measure, unit in (("cpu", "s of CPU"), ("clock", "s by the clock"), ("peak", "MiB")):
        worst = sorted(done, key=lambda case: -getattr(case, measure))[:_PRINTED]
        lines.append(f"most {unit}: " + ", ".join(f"{getattr(case, measure)} (case {case.number})" for case in worst))
    return "\n".join(lines)


def main() -> int:
    """Run all cases; return 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--record", type=Path, help=f"a table: {', '.join(f.name for f in fields(Case)[:-1])}")
    args = parser.parse_args()
    done = run([path.read_bytes() for path in args.files], range(args.first, args.first + args.cases), args.record)
    print(summary(done))
    return int(any(case.outcome == "wrong" for case in done))


if __name__ == "__main__":
    sys.exit(main())
