"""What a job left on a device, understood: nothing is a result before all of it is there and adds up."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from converter.program.manifest import Manifest
from converter.runtime import load_state
from converter.support.errors import UsageError
from converter.support.records import decode
from scripts.harness.device import LOG, RESULT, STATE, THERMAL, Device, Job
from scripts.harness.faults import Failed, Fallback


@dataclass(frozen=True)
class JobConditions:
    """What the app says about itself and its phone from time to time; null is not known."""

    thermal: str | None = None
    battery_percent: int | None = None
    charging: bool | None = None
    native_heap_bytes: int | None = None
    pss_kib: int | None = None
    peak_rss_kib: int | None = None
    available_bytes: int | None = None
    instructions: int | None = None


@dataclass(frozen=True)
class Start:
    """A repeat begins."""

    repeat: int
    runtime: str
    asked: str
    runs: str
    detail: str | None
    fallback: str | None
    conditions: JobConditions
    type: Literal["start"] = "start"


@dataclass(frozen=True)
class Step:
    """A step was done."""

    repeat: int
    step: int
    loss: float
    millis: float
    cpu_millis: float
    conditions: JobConditions | None = None
    type: Literal["step"] = "step"


@dataclass(frozen=True)
class End:
    """A repeat ended."""

    repeat: int
    conditions: JobConditions
    type: Literal["end"] = "end"


@dataclass(frozen=True)
class Ending:
    """The result file of a job."""

    id: str
    ok: bool
    error: str | None
    lines: int
    format: Literal["pocketune-result/1"] = "pocketune-result/1"


@dataclass(frozen=True)
class Outcome:
    """A job that ended well.

    Attributes:
        start: of the first repeat.
        ms, cpu_ms, losses: [repeat][step].
        peak_kib: the most memory of the process that was seen: PSS on a phone, else the peak of the resident set.
        thermal: the highest status in the job, an index in THERMAL; None is not known.
        instructions: of the runtime in a step, without the first, by repeat; empty where nobody counts.
        state: the trained state after the first repeat, by tensor.
    """

    start: Start
    ms: tuple[tuple[float, ...], ...]
    cpu_ms: tuple[tuple[float, ...], ...]
    losses: tuple[tuple[float, ...], ...]
    peak_kib: int | None
    thermal: int | None
    instructions: tuple[int, ...]
    state: dict[str, np.ndarray] = field(repr=False)


KINDS: dict[str, type[Any]] = {"start": Start, "step": Step, "end": End}


def collect(device: Device, job: Job, program: Manifest, into: Path) -> Outcome:
    """Fetches the files of a finished job and checks that they add up.

    Args:
        device: where it ran.
        job: what ran.
        program: what should have run; the state carries the graph hash of what did.
        into: a folder for the files.

    Raises:
        Failed: the job reports an error, or its files are not those of this job, whole and finite.
        Fallback: another accelerator ran, or the GPU took only a part.
        Gone, Silent, Unauthorized, Corrupted: as any transfer.
    """
    name = device.name
    try:
        ending = decode(Ending, json.loads(device.pull(job, RESULT, into).read_bytes()), "result")
        if ending.id != job.id:
            raise Failed(name, f"the result is of job {ending.id}, not {job.id}")
        if not ending.ok:
            raise Failed(name, f"the job failed: {ending.error}")
        lines = device.pull(job, LOG, into).read_bytes().splitlines()
        if len(lines) != ending.lines:
            raise Failed(name, f"the log has {len(lines)} lines, and the result says {ending.lines}")
        records = [_record(line, f"log:{n}") for n, line in enumerate(lines, 1)]
        saved = load_state(device.pull(job, STATE, into))
        if saved.spec.program != program.graph_hash:
            raise Failed(name, "the state belongs to another program")
        state = saved.tensors
    except (UsageError, ValueError) as error:
        raise Failed(name, f"the app's files are not as docs/harness.md says: {error}") from None
    expected = {t.tensor: (t.shape, t.dtype) for t in program.state_tensors}
    if {tensor: (array.shape, array.dtype.name) for tensor, array in state.items()} != expected:
        raise Failed(name, "the tensors of the state are not those of the program")
    outcome = _outcome(name, job, records, dict(state))
    if job.accelerator == "gpu":
        taken, of = delegated(device.said())
        if taken < of:
            raise Fallback(name, f"the GPU took {taken} of {of} operators, and the rest ran on the CPU")
    return outcome


def delegated(log: str) -> tuple[int, int]:
    """Return how many operators the GPU delegate took, of how many, over all graphs.

    (0, 0) when TFLite's log is silent.
    """
    found = re.findall(r"Replacing (\d+) out of (\d+) node\(s\) with delegate \(\w*Gpu\w*\)", log)
    return sum(int(n) for n, _ in found), sum(int(m) for _, m in found)


def _record(line: bytes, where: str) -> Start | Step | End | None:
    data = json.loads(line)
    kind = KINDS.get(str(data.get("type"))) if isinstance(data, dict) else None
    record: Start | Step | End | None = None if kind is None else decode(kind, data, where)
    return record


def _outcome(name: str, job: Job, records: list[Start | Step | End | None], state: dict[str, np.ndarray]) -> Outcome:
    starts = [r for r in records if isinstance(r, Start)]
    steps = [r for r in records if isinstance(r, Step)]
    if [(s.repeat, s.step) for s in steps] != [(r, i) for r in range(job.repeats) for i in range(job.steps)]:
        raise Failed(name, f"the log has {len(steps)} steps, and the job {job.repeats} × {job.steps}")
    if len(starts) != job.repeats:
        raise Failed(name, f"the log has {len(starts)} starts, and the job {job.repeats}")
    for start in starts:
        if start.runs != job.accelerator or start.fallback:
            why = f" ({start.fallback})" if start.fallback else ""
            raise Fallback(name, f"{job.accelerator} was asked for and {start.runs} ran{why}")
    if not all(isfinite(s.loss) and s.millis > 0 and s.cpu_millis >= 0 for s in steps):
        raise Failed(name, "a loss or a time in the log is no number")
    told = [r.conditions for r in records if r is not None and r.conditions is not None]
    memory = [kib for c in told for kib in (c.pss_kib, c.peak_rss_kib) if kib is not None]
    heat = [THERMAL.index(c.thermal) for c in told if c.thermal in THERMAL]

    def by_repeat(values: list[float]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(values[r * job.steps : (r + 1) * job.steps]) for r in range(job.repeats))

    return Outcome(
        starts[0],
        by_repeat([s.millis for s in steps]),
        by_repeat([s.cpu_millis for s in steps]),
        by_repeat([s.loss for s in steps]),
        max(memory, default=None),
        max(heat, default=None),
        _instructions(job, steps),
        state,
    )


def _instructions(job: Job, steps: list[Step]) -> tuple[int, ...]:
    """Between the first and the last step of each repeat, in which nothing but steps happens."""
    counts = []
    for repeat in range(job.repeats):
        first, last = (steps[repeat * job.steps + i].conditions for i in (0, job.steps - 1))
        if job.steps > 1 and first and last and first.instructions is not None and last.instructions is not None:
            counts.append((last.instructions - first.instructions) // (job.steps - 1))
    return tuple(counts) if len(counts) == job.repeats else ()
