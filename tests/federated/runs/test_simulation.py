"""The simulation that docs measure (`scripts.flower.simulate`), at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from scripts.flower import simulate
from tests.federated.flower import BIN, needs_flower


def test_both_splits_have_the_same_rows() -> None:
    """Dealt out, or by person; each client has as many, and held-out rows are of the same persons."""
    people, held = simulate.rows("people", 3)
    dealt, same = simulate.rows("iid", 3)
    assert [len(one.y) for one in (*people, *dealt)] == [simulate.ROWS] * 6
    assert len(held.y) == 3 * simulate.HELD_OUT
    np.testing.assert_array_equal(held.x, same.x)

    def whole(parts: list[simulate.Digits]) -> set[bytes]:
        return {row.tobytes() for one in parts for row in one.x}

    assert whole(people) == whole(dealt)
    assert whole(people[:1]) != whole(dealt[:1])
    assert not whole(people) & whole([held]), "nobody trains on what is held out"


def test_processes_of_a_simulation_are_found_and_no_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print(flush=True); held = bytearray(40 << 20); time.sleep(60)"]
    with (
        subprocess.Popen(command, env=simulate._named(tmp_path), stdout=subprocess.PIPE) as ours,
        subprocess.Popen(command, env=simulate._named(tmp_path / "other"), stdout=subprocess.PIPE) as others,
    ):
        try:
            for one in (ours, others):
                assert one.stdout is not None
                one.stdout.readline()
            with simulate._watched(tmp_path) as peak:
                end = time.monotonic() + 30
                while peak[0] < 40 and time.monotonic() < end:
                    time.sleep(0.2)
            assert simulate._processes(tmp_path) == [ours.pid]
            assert 40 <= peak[0] < 80
        finally:
            ours.kill()
            others.kill()


def has_ray() -> bool:
    return any(BIN.parent.glob("lib/python3*/site-packages/ray"))


@needs_flower
@pytest.mark.slow
@pytest.mark.skipif(not has_ray(), reason="there is no Ray: scripts/flower/install")
def test_a_simulation_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Three clients for four rounds, killed after the second."""
    setting = simulate.Setting(clients=3, rounds=4, fraction=1.0, epochs=1, rate=0.05, cores=2)
    found = simulate.run("people", setting, tmp_path)
    curve = [json.loads(line) for line in (tmp_path / "server/result/curve.jsonl").read_text().splitlines()]
    assert [line["round"] for line in curve] == list(range(5)), "no round is missing, and none is there twice"
    assert [line["clients"] for line in curve[1:]] == [3] * 4
    assert found.federated == curve[-1]["accuracy"]
    assert 2 <= found.resumed < 4
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert found.memory > 100
