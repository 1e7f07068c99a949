"""State files: processes that end, and disks that are full, at every point of a save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
from converter.runtime import StateWarning, TrainingSession, save_state
from converter.support.errors import UsageError
from examples import llama
from tests.runtime.programs import BATCH, EXAMPLES, program
from tests.runtime.state.test_state_file import SPEC, filled, value_at


class Killed(BaseException):
    """Not an OSError: nothing in the code under test catches it, as nothing survives a kill."""


def interrupted(monkeypatch: pytest.MonkeyPatch, point: int, error: BaseException, half: bool) -> Callable[[], int]:
    """Raises at the n-th call that touches the disk; a write may first write half. Returns the count of calls."""
    calls = 0

    def patch(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point:
                if name == "write" and half:
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise error
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "write", "fsync", "replace", "unlink", "close"):
        patch(name)
    return lambda: calls


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("saved_before", [0, 1, 2])
@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")], ids=["killed", "disk full"])
def test_a_crash_at_any_point_leaves_a_whole_state(
    tmp_path: Path, error: BaseException, saved_before: int, half: bool
) -> None:
    point, finished = 0, False
    while not finished:
        point += 1
        path = tmp_path / str(point) / "s"
        path.parent.mkdir()
        for value in range(saved_before):
            save_state(path, SPEC, filled(value + 1))
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = interrupted(monkeypatch, point, error, half)
            try:
                save_state(path, SPEC, filled(9))
            except (Killed, UsageError) as raised:
                assert isinstance(raised, Killed if isinstance(error, Killed) else UsageError)  # noqa: PT017
            finished = calls() < point
        if saved_before:
            assert value_at(path) in (saved_before, 9)
        elif path.exists():
            assert value_at(path) == 9
        assert not finished or value_at(path) == 9
        save_state(path, SPEC, filled(10))
        assert value_at(path) == 10
        assert not path.with_name("s.partial").exists()
    assert point > 6


SAVES_FOREVER = """
import sys, numpy as np
from converter.program.manifest import StateTensor
from converter.runtime import StateSpec, save_state
kinds = StateTensor("a", (40, 50), "float32", slot=False), StateTensor("b", (3,), "float32", slot=False)
value = 0
while True:
    value += 1
    tensors = {"a": np.full((40, 50), value, np.float32), "b": np.full(3, value, np.float32)}
    save_state(sys.argv[1], StateSpec("ab" * 32, kinds), tensors)
    print(value, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with subprocess.Popen([sys.executable, "-c", SAVES_FOREVER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(20):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        # A line cut by the kill is not a report.
        reported = [int(line) for line in child.stdout.read().split("\n")[:-1]] or [20]
    assert child.returncode == -signal.SIGKILL
    assert value_at(path) >= reported[-1]


TRAINS_STEP_BY_STEP = """
import sys, numpy as np
from converter.runtime import TrainingSession
program, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = np.load(sys.argv[4])
with TrainingSession(program) as session:
    done = session.restore(path).generation if sys.argv[5] == "goes on" else 0
    for step in range(done, steps):
        print("begins", flush=True)
        session.train(ids[step, :, :-1], ids[step, :, 1:])
        print("saves", flush=True)
        session.save(path)
"""


@pytest.mark.filterwarnings("ignore::converter.runtime.StateWarning")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_step_in_blocks_that_is_killed_counts_whole_or_not_at_all(kills: int, tmp_path: Path) -> None:
    """Weights and slots of Adam, after kills at random moments of forward, backward and update, to the last bit."""
    shape: dict[str, Any] = {"layers": 3, "width": 128, "heads": 4, "key_heads": 2, "vocabulary": 300}
    options: dict[str, Any] = {"update": "lora-4", "frozen": "int4-blockwise", "blocks": "on", "optimizer": "adam"}
    model = llama.build(length=128, **shape)
    program = converter.build(model, loss="next_token", batch=2, check=False, signatures=("train",), **options)
    file, path, steps = program.write(tmp_path / "m.tflite"), tmp_path / "s", 2 * kills + 4
    rng = np.random.default_rng(kills)
    ids = rng.integers(0, 300, (steps, 2, 129)).astype(np.int32)
    np.save(tmp_path / "ids.npy", ids)
    in_a_step = 0
    for kill in range(kills + 1):
        arguments = [file, path, str(steps), tmp_path / "ids.npy", "goes on" if path.exists() else "begins"]
        command = [sys.executable, "-c", TRAINS_STEP_BY_STEP, *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            if kill < kills:
                for _ in range(3):  # a step, its save, and the next
                    child.stdout.readline()
                time.sleep(rng.uniform(0, 0.02))
                child.send_signal(signal.SIGKILL)
            in_a_step += (child.stdout.read().split() or ["begins"])[-1] == "begins"
    assert child.returncode == 0
    assert in_a_step
    with TrainingSession(file) as session:
        assert session.restore(path).generation == steps
        found = session.state()
        session.reset()
        for row in ids:
            session.train(row[:, :-1], row[:, 1:])
        for name, array in session.state().items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


KILLED_BETWEEN_RENAMES = """
import os, sys
from converter.runtime import TrainingSession
import numpy as np
session = TrainingSession(sys.argv[1])
session.restore(sys.argv[2])
session.train(np.ones((8, 12), np.float32), [0] * 8)
real, calls = os.replace, []
def replace(*arguments):
    real(*arguments)
    os._exit(9)
os.replace = replace
session.save(sys.argv[2])
"""


def test_a_session_killed_between_the_renames_goes_on_from_the_older_state(tmp_path: Path) -> None:
    tflite, path = program().write(tmp_path / "m.tflite"), tmp_path / "s"
    with TrainingSession(tflite) as session:
        session.train(*EXAMPLES["mlp"].data(BATCH))
        session.save(path)
        saved = session.state()
        done = subprocess.run([sys.executable, "-c", KILLED_BETWEEN_RENAMES, tflite, path])
        assert done.returncode == 9
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.tflite", "s.partial", "s.previous"]
        session.reset()
        with pytest.warns(StateWarning, match="missing. The state saved before it"):
            session.restore(path)
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, saved[name])
