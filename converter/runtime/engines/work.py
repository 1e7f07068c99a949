"""Isolated engine processes: an engine that aborts or hangs takes nobody with it.

Both sides share a folder: `<task>.tflite`, the inputs of its calls `<task>-<call>.in.npz`, and what came of them,
`<task>-<call>.out.npz`, `<task>.json` (what the engine says of the program) and `<task>.log` (what it wrote).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from converter.support.errors import UsageError
from converter.support.logs import redirected

#: What is said of an engine that a signal ended, before the signal's name.
ENDED = "it ended its process"

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """A program, and calls of it: a signature and its inputs by name."""

    program: bytes
    calls: Sequence[tuple[str, Arrays]] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a task.

    Attributes:
        results: of the calls, as far as it came.
        said: what the engine says of the program: `whole`, `driver`.
        log: what it wrote meanwhile.
        error: why it did not come to the end; empty where it did.
    """

    results: list[dict[str, np.ndarray]]
    said: dict[str, Any]
    log: str
    error: str

    @property
    def signal(self) -> str:
        """The signal that ended its process, as SIGSEGV; empty where none did."""
        found = re.search(f"{ENDED} \\((SIG\\w+)\\)", self.error)
        return found[1] if found else ""


class Runner(Protocol):
    """A program loaded by an engine."""

    def said(self, log: str) -> dict[str, Any]:
        """Return what the engine says of it, given what it wrote."""

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        """Return results by name."""


def perform(
    module: str,
    tasks: Sequence[Task],
    options: Mapping[str, Any],
    environment: Mapping[str, str],
    limit: float,
    folder: Path | None = None,
) -> list[Outcome]:
    """Runs tasks, one after the other, in a process of a module that calls `serve`; in a new one after each crash.

    Args:
        module: what `python -m` runs.
        tasks: the programs and calls.
        options: what else the engine is told, plain JSON values.
        environment: variables that the engine needs, besides those of this process.
        limit: seconds that each task may take.
        folder: where files go; None is a temporary one.
    """
    if folder is None:
        # What a killed process had started may write to the last.
        with tempfile.TemporaryDirectory(prefix="pocketune-", ignore_cleanup_errors=True) as temporary:
            return perform(module, tasks, options, environment, limit, Path(temporary))
    for number, task in enumerate(tasks):
        (folder / f"{number}.tflite").write_bytes(task.program)
        (folder / f"{number}.task").write_text(json.dumps([signature for signature, _ in task.calls]))
        for call, (_, feed) in enumerate(task.calls):
            _save(folder / f"{number}-{call}.in.npz", feed)
    outcomes: list[Outcome] = []
    while len(outcomes) < len(tasks):
        command = [sys.executable, "-m", module, str(folder), str(len(outcomes)), json.dumps(dict(options))]
        ended = _ended(command, folder / f"process-{len(outcomes)}.log", environment, limit)
        while len(outcomes) < len(tasks) and (folder / f"{len(outcomes)}.json").exists():
            outcomes.append(_outcome(folder, len(outcomes), tasks[len(outcomes)], ""))
        if len(outcomes) < len(tasks):  # it did not survive this one
            outcomes.append(_outcome(folder, len(outcomes), tasks[len(outcomes)], ended))
    return outcomes


#: When engines have to have ended, by the monotonic clock, and what is said then.
_deadline: ContextVar[tuple[float, str] | None] = ContextVar("deadline", default=None)


@contextmanager
def at_most(seconds: float | None, on: str) -> Iterator[None]:
    """What runs on an engine within ends after so many seconds, with a UsageError; None: whenever it is done."""
    said = f"{on} did not end within {seconds} s (--limit, limit=): take fewer steps, a smaller batch, or more time"
    token = _deadline.set(None if seconds is None else (time.monotonic() + seconds, said))
    try:
        yield
    finally:
        _deadline.reset(token)


def engine_time_left() -> float:
    """Return seconds that are left. Raises UsageError where none are."""
    if (deadline := _deadline.get()) is None:
        return float("inf")
    end, said = deadline
    if (left := end - time.monotonic()) <= 0:
        raise UsageError(said, page="engines")
    return left


def _ended(command: Sequence[str], log: Path, environment: Mapping[str, str], limit: float) -> str:
    """Runs the process to its end; how it ended."""
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 our own module
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            code = _wait(process, log.parent, limit)
        finally:
            _end(process)
    if code is None:
        return f"it did not come back within {limit:g} s"
    if code < 0:
        return f"{ENDED} ({signal.Signals(-code).name})"
    return f"its process ended with exit status {code}: {last_words(log.read_text(errors='replace'))}"


def _wait(process: subprocess.Popen, folder: Path, limit: float) -> int | None:
    """Return its exit status; None where it is still there, and has done nothing for so many seconds."""
    done = -1
    while (now := len(list(folder.glob("*.json")))) != done:
        done = now
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(limit, engine_time_left()))
    return None


def _end(process: subprocess.Popen) -> None:
    """Ends a process and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _outcome(folder: Path, number: int, task: Task, ended: str) -> Outcome:
    log = folder / f"{number}.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    report = folder / f"{number}.json"
    found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"said": {}, "error": ended}
    error: str = found["error"]
    if error and not report.exists() and text:
        error += f", its last words: {last_words(text)}"
    results = []
    for call in range(len(task.calls)):
        given = folder / f"{number}-{call}.out.npz"
        if not given.exists():
            break
        results.append(_load(given))
    return Outcome(results, found["said"], text, error)


def _save(path: Path, arrays: Arrays) -> None:
    np.savez(path, np.array([*arrays]), *arrays.values())


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {str(name): file[f"arr_{number}"] for number, name in enumerate(file["arr_0"], 1)}


def last_words(text: str) -> str:
    """Return the end of a log in one line."""
    return " | ".join(line.strip()[:300] for line in text.splitlines() if line.strip()[:1] not in ("", "@"))[-900:]


def serve(load: Callable[[Path, Mapping[str, Any]], Runner]) -> None:
    """The other side: the process of an engine. `load` loads a program, and is told the options."""
    _end_with_who_asked()
    folder, number, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    while (folder / f"{number}.task").exists():
        calls = json.loads((folder / f"{number}.task").read_text())
        log, said, error = folder / f"{number}.log", dict[str, Any](), ""
        with log.open("wb") as file, redirected(file):
            try:
                runner = load(folder / f"{number}.tflite", options)
                said = runner.said(log.read_text(errors="replace"))
                for call, signature in enumerate(calls):
                    given = runner(signature, _load(folder / f"{number}-{call}.in.npz"))
                    partial = folder / f"{number}-{call}.partial.npz"
                    _save(partial, given)
                    partial.rename(folder / f"{number}-{call}.out.npz")
                said = runner.said(log.read_text(errors="replace"))
            except Exception as failure:  # whatever an engine raises is what is to be told
                error = f"{type(failure).__name__}: {failure}"[:2000]
        (folder / f"{number}.partial").write_text(json.dumps({"said": said, "error": error}))
        (folder / f"{number}.partial").rename(folder / f"{number}.json")
        number += 1


def _end_with_who_asked() -> None:
    """Ends this process and what it starts once the one that holds the other end of stdin is gone, however it ended.

    By a signal of the kernel: an engine that compiles for minutes lets no thread of ours run meanwhile.
    """
    stdin = sys.stdin.fileno()
    fcntl.fcntl(stdin, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(stdin, fcntl.F_SETFL, fcntl.fcntl(stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([stdin], [], [], 0)[0]:  # it was gone before
        os.killpg(0, signal.SIGKILL)
