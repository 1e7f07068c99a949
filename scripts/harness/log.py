"""Result files: JSON Lines, only ever appended to, every line checked against its record when written and when read.

A job has two lines: `began` before it starts and `result` or `fault` after it. What only began is no result.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from converter.support.errors import UsageError
from converter.support.records import decode
from scripts.harness.device import Conditions, Facts
from scripts.harness.plan import Setup, Variant

FORMAT: Literal["pocketune-bench/1"] = "pocketune-bench/1"
FIRST_BYTES = b'{"session": "'


@dataclass(frozen=True)
class Run:
    """The harness begins, or goes on after --resume.

    Attributes:
        session: the same in all files of one invocation: their jobs took turns.
        commit: of Pocketune's own checkout; None outside of git.
        dirty: files differ from the commit.
        allowed: conditions that hold and that the user accepts.
        setup: how its jobs train.
    """

    session: str
    plan: str
    plan_hash: str
    build: str
    facts: Facts
    conditions: Conditions
    allowed: tuple[str, ...]
    setup: Setup
    commit: str | None
    dirty: bool | None
    time: str
    format: Literal["pocketune-bench/1"] = FORMAT
    type: Literal["run"] = "run"


@dataclass(frozen=True)
class Began:
    """A job starts."""

    id: str
    variant: Variant
    round: int
    attempt: int
    time: str
    type: Literal["began"] = "began"


@dataclass(frozen=True)
class Checked:
    """The numbers of a variant were compared with the host's.

    Attributes:
        losses: of the device.
        host_losses: of the host.
        loss_error: the largest relative difference.
        update_error: the largest distance of a trained tensor, in terms of the host's update.
        worst: that tensor.
    """

    id: str
    variant: Variant
    ok: bool
    losses: tuple[float, ...]
    host_losses: tuple[float, ...]
    loss_error: float
    update_error: float
    worst: str
    type: Literal["checked"] = "checked"


@dataclass(frozen=True)
class Result:
    """A job ended well; all its steps are here, the warm-up too.

    Attributes:
        session: of the run that it belongs to.
        ms: for each repeat the milliseconds of each step.
        cpu_ms: likewise what the process used of all cores meanwhile; a phone counts whole milliseconds.
        losses: for each repeat the loss of each step.
        runs: the accelerator that really ran.
        detail: what the runtime says about it.
        peak_kib: the most memory that the app's process held, as far as it was asked.
        instructions: for each repeat those of the runtime in a step; empty where nobody counts.
        before, after: the device around the job.
        allowed: conditions that held around the job and that the user accepts.
        discarded: why it is no number; None for a good one.
    """

    id: str
    session: str
    variant: Variant
    round: int
    attempt: int
    time: str
    seconds: float
    runtime: str
    asked: str
    runs: str
    detail: str | None
    ms: tuple[tuple[float, ...], ...]
    cpu_ms: tuple[tuple[float, ...], ...]
    losses: tuple[tuple[float, ...], ...]
    peak_kib: int | None
    before: Conditions
    after: Conditions
    instructions: tuple[int, ...] = ()
    allowed: tuple[str, ...] = ()
    discarded: str | None = None
    type: Literal["result"] = "result"

    def timed(self, warmup: int) -> list[float]:
        """Return milliseconds of the steps that count."""
        return [ms for repeat in self.ms for ms in repeat[warmup:]]

    def computed(self, warmup: int) -> list[float]:
        """Return milliseconds of CPU time of the steps that count."""
        return [ms for repeat in self.cpu_ms for ms in repeat[warmup:]]


@dataclass(frozen=True)
class FaultLine:
    """A fault of that kind (scripts/harness/faults.py): of one variant, or the end of the run on this device."""

    kind: str
    message: str
    time: str
    variant: Variant | None = None
    type: Literal["fault"] = "fault"


Record = Run | Began | Checked | Result | FaultLine
KINDS: dict[str, type[Any]] = {"run": Run, "began": Began, "checked": Checked, "result": Result, "fault": FaultLine}


@dataclass(frozen=True)
class ResultFile:
    """All records of a file, in order."""

    path: Path
    records: tuple[Record, ...]

    @property
    def runs(self) -> list[Run]:
        """The runs, at least one."""
        return [r for r in self.records if isinstance(r, Run)]

    @property
    def warmup(self) -> int:
        """Steps at the beginning of each training that do not count."""
        return self.runs[0].setup.warmup

    @property
    def allowed(self) -> list[str]:
        """What held in any of the runs or around a job, and was accepted."""
        records: list[Run | Result] = [*self.runs, *self.results]
        return sorted({name for record in records for name in record.allowed})

    @property
    def results(self) -> list[Result]:
        """The good results."""
        return [r for r in self.records if isinstance(r, Result) and r.discarded is None]

    @property
    def by_variant(self) -> dict[Variant, list[Result]]:
        """The good results of each variant, in the order of the plan: a run begins with its checks, in that order.

        Variants without a check follow in the order of their first results.
        """
        groups: dict[Variant, list[Result]] = {variant: [] for variant in self.checks}
        for result in self.results:
            groups.setdefault(result.variant, []).append(result)
        return {variant: results for variant, results in groups.items() if results}

    @property
    def discarded(self) -> list[Result]:
        """The results that are no numbers."""
        return [r for r in self.records if isinstance(r, Result) and r.discarded is not None]

    @property
    def checks(self) -> dict[Variant, Checked]:
        """The last check of each variant."""
        return {r.variant: r for r in self.records if isinstance(r, Checked)}

    @property
    def faults(self) -> list[FaultLine]:
        """What went wrong."""
        return [r for r in self.records if isinstance(r, FaultLine)]


def read_results(path: Path) -> ResultFile:
    """Reads a result file; a last line that was cut by a crash is left out.

    Raises:
        UsageError: no such file, no result file, or a line that is not as it should be (the error says which).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    records = tuple(_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1))
    if not lines:
        raise UsageError(f"{path}: there is no result in it yet")
    if not isinstance(records[0], Run):
        raise UsageError(f"{path}: this is no result file of scripts/device: its first line is no run")
    setup = records[0].setup
    for number, record in enumerate(records, 1):
        if isinstance(record, Result) and (len(record.ms), len(record.ms[0])) != (setup.repeats, setup.steps):
            found = f"{len(record.ms)} × {len(record.ms[0])}"
            raise UsageError(f"{path}:{number}: {found} steps, and the run has {setup.repeats} × {setup.steps}")
    return ResultFile(path, records)


def _record(line: bytes, where: str) -> Record:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no JSON ({error})") from None
    kind = KINDS.get(str(data.get("type"))) if isinstance(data, dict) else None
    if kind is None:
        raise UsageError(f"{where}: no record of a known type ({', '.join(KINDS)})")
    record: Record = decode(kind, data, where)
    if isinstance(record, Result):
        _check_numbers(record, where)
    if isinstance(record, Run):
        _check_setup(record.setup, where)
    return record


def _check_setup(setup: Setup, where: str) -> None:
    """Raises UsageError for a setup in which no step counts."""
    if setup.repeats < 1 or not 0 <= setup.warmup < setup.steps:
        found = f"{setup.repeats} × {setup.steps} steps, of which the first {setup.warmup} are warm-up"
        raise UsageError(f"{where}: {found}: no plan can say that, so the file was changed; measure again")


def _check_numbers(result: Result, where: str) -> None:
    """Raises UsageError for numbers that no job can have."""
    columns = (result.ms, result.cpu_ms, result.losses)
    shapes = {tuple(map(len, repeats)) for repeats in columns}
    if len(shapes) != 1 or len(lengths := set(shapes.pop())) != 1 or not min(lengths):
        raise UsageError(f"{where}: times and losses are not those of whole trainings")
    if not all(isfinite(ms) and ms > 0 for steps in result.ms for ms in steps):
        raise UsageError(f"{where}: a step time is no positive number")
    if not all(isfinite(ms) and ms >= 0 for steps in result.cpu_ms for ms in steps):
        raise UsageError(f"{where}: a CPU time is below 0")
    if len(result.instructions) not in (0, len(result.ms)) or not all(n > 0 for n in result.instructions):
        raise UsageError(f"{where}: instructions are not a positive number for each training")


class Log:
    """A result file that is written to; each line is on the disk before `write` returns."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Opens the file, for itself alone.

        Raises:
            UsageError: a run began in it that is not to be resumed, it is no result file, or another run writes to it.
        """
        self.path = path
        self.earlier: ResultFile | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer of its own: what cannot be written fails at once and not again when it is closed.
            self._stream = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        try:
            lock(self._stream, f"{path}: another run writes to it: let it end, or give another --out")
            if path.stat().st_size:
                data = path.read_bytes()
                whole = data.rfind(b"\n") + 1
                # A crash may have cut the very first line; anything else without a whole line is somebody's.
                if not whole and not (data.startswith(FIRST_BYTES) or FIRST_BYTES.startswith(data)):
                    raise UsageError(f"{path} is no result file of scripts/device: give another --out")
                found = read_results(path) if whole else None
                # Where nothing was done yet, as with a battery that was too low, there is nothing to go on from.
                if found is None or all(isinstance(r, Run | FaultLine) for r in found.records):
                    whole, found = 0, None
                elif not resume:
                    raise UsageError(f"{path} exists: give --resume to finish it, or another --out")
                self.earlier = found
                os.truncate(path, whole)
        except BaseException:
            self._stream.close()
            raise

    def write(self, record: Record) -> None:
        """Appends a record."""
        line = json.dumps(asdict(record), allow_nan=False).encode()
        _record(line, str(self.path))
        try:
            if self._stream.write(line + b"\n") != len(line) + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}") from None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()


def lock(stream: IO[Any], problem: str) -> None:
    """Takes a file for this process, until it is closed. Raises UsageError with the problem when another one has it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(problem) from None


def finished(records: Iterable[Record]) -> set[tuple[Variant, int]]:
    """Return the variants and rounds that have a good result."""
    return {(r.variant, r.round) for r in records if isinstance(r, Result) and r.discarded is None}
