"""Runs one job in the host runtime and leaves what the app's harness activity leaves (docs/harness.md).

python -m scripts.harness.worker JOB.json RESULTS [ACCELERATOR=ENGINE]...
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from converter.runtime import TrainingSession
from converter.support.errors import PocketuneError, UsageError
from converter.support.files import write_atomically
from converter.support.records import decode
from scripts.harness.batches import read_batches
from scripts.harness.device import LOG, RESULT, RESULT_FORMAT, STATE, Job

CONDITIONS_EVERY = 10
#: By the accelerator that a job asks for, what a session is asked for.
Offers = Mapping[str, str]
CPU = {"cpu": "cpu"}


class Lines:
    """The log: a JSON object a line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.count = stream, 0

    def write(self, type: str, /, **fields: Any) -> None:
        """Writes a line and hands it to the system at once, so that it survives this process."""
        self.stream.write(json.dumps({"type": type, **fields}, allow_nan=False) + "\n")
        self.stream.flush()
        self.count += 1


def run(job: Job, results: Path, offers: Offers = CPU) -> None:
    """Runs a job to its end; whatever comes of it stands in the result, which appears last and whole.

    Args:
        job: what runs.
        results: a folder.
        offers: what this host has.
    """
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{job.id}.{RESULT}").unlink(missing_ok=True)
    error = None
    with (results / f"{job.id}.{LOG}").open("w") as stream:
        lines = Lines(stream)
        try:
            _perform(job, lines, results / f"{job.id}.{STATE}", offers)
        except (PocketuneError, OSError) as problem:
            error = f"{type(problem).__name__}: {problem}"
            lines.write("error", kind=type(problem).__name__, message=str(problem))
        os.fsync(stream.fileno())
    result = {"format": RESULT_FORMAT, "id": job.id, "ok": error is None, "error": error, "lines": lines.count}
    write_atomically(results / f"{job.id}.{RESULT}", (json.dumps(result) + "\n").encode())


def _perform(job: Job, lines: Lines, state: Path, offers: Offers) -> None:
    lines.write("device", model=platform.node(), system=platform.platform(), cores=os.cpu_count())
    if job.accelerator not in offers:
        raise UsageError(f"accelerator: {job.accelerator!r} is not offered by this host, only {', '.join(offers)}")
    program = Path(job.program).read_bytes()
    for repeat in range(job.repeats):
        with TrainingSession(program, threads=job.threads, accelerator=offers[job.accelerator]) as session:
            batches = read_batches(Path(job.batches), session.manifest)
            lines.write(
                "start",
                repeat=repeat,
                runtime=f"ai-edge-litert {version('ai-edge-litert')}",
                asked=job.accelerator,
                runs=session.report.runs,
                detail=str(session.report),
                fallback=None if session.report.whole else str(session.report),
                conditions=_conditions(),
            )
            rate = job.learning_rate if session.manifest.running_rate is None else None
            for step in range(job.steps):
                batch = batches[step % len(batches)]
                began, cpu_began = time.perf_counter(), time.process_time()
                loss = session.train(batch.inputs, batch.target, rate, batch.weight)
                cpu_millis, millis = (time.process_time() - cpu_began) * 1e3, (time.perf_counter() - began) * 1e3
                is_told = step % CONDITIONS_EVERY == 0 or step == job.steps - 1
                extra = {"conditions": _conditions()} if is_told else {}
                lines.write("step", repeat=repeat, step=step, loss=loss, millis=millis, cpu_millis=cpu_millis, **extra)
            lines.write("end", repeat=repeat, conditions=_conditions())
            if repeat == 0:
                state.unlink(missing_ok=True)
                session.save(state)


def _conditions() -> dict[str, Any]:
    """Return the most memory of this process so far; the other conditions of a phone do not exist here."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return {"peak_rss_kib": int(peak[1])} if peak else {}


def main() -> None:
    """Reads the job file and runs it."""
    faulthandler.enable()  # a library that crashes is to be known by it
    job = decode(Job, json.loads(Path(sys.argv[1]).read_text()), "job")
    offers = dict(words.split("=", 1) for words in sys.argv[3:])
    run(job, Path(sys.argv[2]), offers or CPU)


if __name__ == "__main__":
    main()
