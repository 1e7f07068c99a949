"""Runs jobs on one device: waits, watches, and takes nothing for a result that is none."""

from __future__ import annotations

import re
import secrets
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from scripts.harness.device import THERMAL, Conditions, Device, Job
from scripts.harness.faults import Crashed, Fault, Killed, Overheated, Stalled
from scripts.harness.outcome import Outcome, collect
from scripts.harness.plan import Bench, Cooling, Subject
from scripts.harness.stop import rest

#: What a process, a JVM or Android's log says of a fault in a library.
CRASH = re.compile(r"SIG(SEGV|BUS|ILL|FPE)\b|Segmentation fault|Bus error|Illegal instruction")


def now() -> str:
    """Return the time in result files."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_id(subject: Subject, round: int, attempt: int) -> str:
    """Return a job's name: says what it is, and is never used twice."""
    program = re.sub(r"[^A-Za-z0-9_-]", "_", subject.variant.program)[:40]
    return f"{program}-{round}-{attempt}-{secrets.token_hex(4)}"


class Runner:
    """Runs jobs of a plan on a device."""

    def __init__(self, device: Device, bench: Bench, say: Callable[[str], None]) -> None:
        self.device, self.bench, self.say = device, bench, say

    def run(self, subject: Subject, id: str, steps: int, repeats: int) -> Outcome:
        """Run one job from push to checked files.

        Raises:
            Fault: whatever went wrong; the job is stopped and its files are removed where that is still possible.
            UsageError: a file of the plan has changed.
        """
        self.bench.check_files(subject)
        with tempfile.TemporaryDirectory(prefix="pocketune-") as folder:
            batches = Path(folder, "batches.bin")
            batches.write_bytes(subject.batches(self.bench.plan, self.bench.folder))
            program, data = self.device.push(subject.file), self.device.push(batches)
            job = self.bench.job(subject, id, program, data, steps, repeats)
            try:
                self.device.start(job)
                self._wait(job)
                outcome = collect(self.device, job, subject.manifest, Path(folder))
            except Fault as fault:
                self._abandon(job, fault)
                raise
            self.device.forget(job)
            return outcome

    def _wait(self, job: Job) -> None:
        """Until the job's result is there. Raises Killed, Stalled or Interrupted, and what polling raises."""
        size, grown = -1, time.monotonic()
        while (progress := self.device.poll(job)).state != "finished":
            if progress.state == "gone":
                words = self.device.last_words()
                if found := CRASH.search(f"{self.device.said()}\n{words}"):
                    raise Crashed(self.device.name, f"the library crashed ({found[0]}){_quoted(words)}")
                raise Killed(self.device.name, f"the job's process ended before its job{_quoted(words)}")
            if progress.bytes != size:
                size, grown = progress.bytes, time.monotonic()
            elif time.monotonic() - grown > self.bench.plan.stall_seconds:
                raise Stalled(self.device.name, f"no step for {self.bench.plan.stall_seconds:.0f} s")
            rest(self.device.name, self.device.poll_seconds)

    def _abandon(self, job: Job, fault: Fault) -> None:
        """Best effort: a device that is gone cannot be tidied."""
        if fault.recoverable:
            return
        try:
            self.device.stop()
            self.device.forget(job)
        except Fault as another:
            self.say(f"{self.device.name}: not tidied up: {another.problem}")


def _quoted(words: str) -> str:
    return f"; its log says:\n{words}\n" if words else ""


def cool(device: Device, start: Conditions, cooling: Cooling, allowed: tuple[str, ...]) -> Conditions:
    """Waits until the device is as cool as at the start; returns how it is then.

    Raises:
        Overheated: it takes longer than the plan allows.
    """
    until = time.monotonic() + cooling.seconds
    while True:
        current = device.conditions()
        hot = warmth(start, current, cooling)
        if not hot or "THERMAL" in allowed:
            return current
        if time.monotonic() > until:
            raise Overheated(device.name, f"{hot} after {cooling.seconds:.0f} s of rest")
        rest(device.name, min(10 * device.poll_seconds, max(cooling.seconds / 10, 0.05)))


def warmth(start: Conditions, current: Conditions, cooling: Cooling) -> str | None:
    """In what way the device is too warm for the next job; None when it is not."""
    if current.thermal:
        return f"thermal status {THERMAL[current.thermal]}"
    # A computer's sensors jump by degrees within a second; only a battery's temperature says something here.
    if start.battery_percent is not None and start.celsius is not None and current.celsius is not None:
        excess = current.celsius - start.celsius
        if excess > cooling.celsius:
            return f"{current.celsius:.1f} °C, {excess:.1f} more than at the start"
    return None


def grew_hot(before: Conditions, during: int | None, after: Conditions) -> str | None:
    """Return why a job gives no number, by the thermal status around it and the highest in it; None when it does."""
    hottest = max(during or 0, after.thermal or 0)
    if hottest > (before.thermal or 0):
        return f"the thermal status rose from {THERMAL[before.thermal or 0]} to {THERMAL[hottest]}"
    return None
