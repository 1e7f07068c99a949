"""Result files: JSON Lines, only ever appended to, every line checked against its record when written and when read.

A job has two lines: `began` before it starts and `result` or `fault` after it. What only began is no result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from converter.errors import UsageError
from converter.records import decode
from scripts.harness.device import Conditions, Facts
from scripts.harness.plan import Variant

FORMAT: Literal["pocketune-bench/1"] = "pocketune-bench/1"


@dataclass(frozen=True)
class Run:
    """The harness begins, or goes on after --resume.

    Attributes:
        session: the same in all files of one invocation: their jobs took turns.
        commit: of Pocketune's own checkout; None outside of git.
        dirty: files differ from the commit.
        allowed: conditions that hold and that the person accepts.
    """

    session: str
    plan: str
    plan_hash: str
    build: str
    facts: Facts
    conditions: Conditions
    allowed: tuple[str, ...]
    warmup: int
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
        losses: for each repeat the loss of each step.
        runs: the accelerator that really ran.
        detail: what the runtime says about it.
        peak_kib: the most memory that the app's process held, as far as it was asked.
        instructions: for each repeat those of the runtime in a step; empty where nobody counts.
        before, after: the device around the job.
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
    losses: tuple[tuple[float, ...], ...]
    peak_kib: int | None
    before: Conditions
    after: Conditions
    instructions: tuple[int, ...] = ()
    discarded: str | None = None
    type: Literal["result"] = "result"


@dataclass(frozen=True)
class FaultLine:
    """The run on this device was interrupted, by a fault of that kind (scripts/harness/faults.py)."""

    kind: str
    message: str
    time: str
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
    def results(self) -> list[Result]:
        """The good results."""
        return [r for r in self.records if isinstance(r, Result) and r.discarded is None]

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
    if not records or not isinstance(records[0], Run):
        raise UsageError(f"{path}: this is no result file of scripts/device: its first line is no run")
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
    return record


class Log:
    """A result file that is written to; each line is on the disk before `write` returns."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Opens the file.

        Raises:
            UsageError: it exists and is not to be resumed, or is no result file.
        """
        self.path = path
        self.earlier: ResultFile | None = None
        if path.exists() and path.stat().st_size:
            if not resume:
                raise UsageError(f"{path} exists: give --resume to finish it, or another --out")
            whole = path.read_bytes().rfind(b"\n") + 1
            self.earlier = read_results(path) if whole else None
            os.truncate(path, whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("ab")

    def write(self, record: Record) -> None:
        """Appends a record."""
        line = json.dumps(asdict(record), allow_nan=False).encode()
        _record(line, str(self.path))
        self._stream.write(line + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()


def finished(records: Iterable[Record]) -> set[tuple[Variant, int]]:
    """The variants and rounds that have a good result."""
    return {(r.variant, r.round) for r in records if isinstance(r, Result) and r.discarded is None}
