"""Memories: processes that end, and disks that are full, at every point of a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from converter.runtime import ReplayMemory, TrainingSession
from converter.support.errors import UsageError
from tests.runtime.programs import EXAMPLES, program
from tests.runtime.state.test_state_crashes import Killed, interrupted

LIMIT, ROWS = 3000, 7

#: Each line that it reads begins a process that trains, and is told of when it has ended.
TRAINS_ON_A_STREAM = """
import os, sys, numpy as np
from converter.runtime import ReplayMemory, TrainingSession

def train():
    rows = np.load(sys.argv[3])
    session = TrainingSession(sys.argv[1])
    memory = ReplayMemory(sys.argv[2], session.manifest, limit=int(sys.argv[4]), seed=4)
    print(memory.seen, flush=True)
    while memory.seen + 7 <= len(rows["x"]):
        part = slice(memory.seen, memory.seen + 7)
        session.fit(rows["x"][part], rows["y"][part], epochs=1, memory=memory, progress=False)
        print(memory.seen, flush=True)

for _ in sys.stdin:
    if not (pid := os.fork()):
        print("began", os.getpid(), flush=True)
        train()
        os._exit(0)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def killed(child: subprocess.Popen[str], after: float, reports: int) -> list[int]:
    """How many rows a training says that it had entered, until it is killed some time after so many reports."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    pid = int(child.stdout.readline().removeprefix("began "))
    found = [int(child.stdout.readline()) for _ in range(reports)]
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    while True:
        line = child.stdout.readline()
        if "ended" in line:  # perhaps behind a line that was cut by the kill, which is no report
            assert line.endswith(f"ended {-signal.SIGKILL}\n")
            return found
        found.append(int(line))


@pytest.mark.quick
@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_training_killed_at_random_moments_loses_no_row_and_has_none_twice(kills: int, tmp_path: Path) -> None:
    """After all kills it is the memory of one process that nobody killed, to the byte, and within its limit."""
    x, y = EXAMPLES["mlp"].data(40_000)
    tflite, path, whole = program().write(tmp_path / "m.tflite"), tmp_path / "m", tmp_path / "whole"
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    command = [sys.executable, "-c", TRAINS_ON_A_STREAM, *map(str, (tflite, path, tmp_path / "rows.npz", LIMIT))]
    session, partial = TrainingSession(tflite), path.with_name("m.partial")
    rng, done, in_a_commit = np.random.default_rng(kills), 0, 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for kill in range(kills):
            # In turn from where it opens the memory on, and in the midst of trainings.
            reported = killed(child, rng.uniform(0, 0.05), reports=kill % 4)
            in_a_commit += partial.exists()
            assert all(each.stat().st_size <= LIMIT for each in (path, partial) if each.exists())
            if not path.exists():
                continue
            memory = ReplayMemory(path, session.manifest)
            assert memory.seen >= max([done, *reported]), "a row that was committed is gone"
            assert memory.seen % ROWS == 0, "a call enters whole or not at all"
            done = memory.seen
        child.stdin.close()
    assert child.returncode == 0
    assert done > kills, "the trainings got somewhere"
    assert kills < 100 or in_a_commit, "no kill came in the midst of a commit"
    reference = ReplayMemory(whole, session.manifest, limit=LIMIT, seed=4)
    session.remember(reference, x[:done], y[:done])
    assert path.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")], ids=["killed", "disk full"])
def test_a_crash_at_any_point_leaves_the_rows_before_or_all(tmp_path: Path, error: BaseException, half: bool) -> None:
    session = TrainingSession(program().data)
    x, y = EXAMPLES["mlp"].data(30)
    point, finished = 0, False
    while not finished:
        point += 1
        path = tmp_path / str(point) / "m"
        path.parent.mkdir()
        memory = ReplayMemory(path, session.manifest, limit=LIMIT)
        session.remember(memory, x[:20], y[:20])
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = interrupted(monkeypatch, point, error, half)
            try:
                session.remember(memory, x[20:], y[20:])
            except (Killed, UsageError) as raised:
                assert isinstance(raised, Killed if isinstance(error, Killed) else UsageError)  # noqa: PT017
            finished = calls() < point
        memory = ReplayMemory(path, session.manifest)
        assert memory.seen in ((30,) if finished else (20, 30))
        if memory.seen < 30:
            session.remember(memory, x[memory.seen :], y[memory.seen :])
        assert memory.seen == 30
        assert memory.counts()
        assert finished or point < 20
    assert point > 4
