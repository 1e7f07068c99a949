"""Verdicts on what was really measured here: minutes, and only when asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.harness import bench as bench_module
from scripts.harness.bench import Options, run_all
from scripts.harness.compare import Comparison, compare
from scripts.harness.devices.computer import Computer
from scripts.harness.devices.hosts import ROOT
from scripts.harness.devices.transport import LocalTransport
from scripts.harness.log import read_results
from scripts.harness.plan import Subject, read_plan
from scripts.harness.runner import new_id
from tests.harness.conftest import build_program

THRESHOLD = 0.05


def measure(folder: Path, program: Path, worker: str, rounds: int) -> Comparison:
    """Runs the same program as two builds in turns, or goes on with that; one comparison."""
    for build in ("old", "new"):
        (folder / build).mkdir(parents=True, exist_ok=True)
        (folder / build / "net.tflite").write_bytes(program.read_bytes())
    (folder / "plan.toml").write_text(
        f'programs = ["net.tflite"]\nrounds = {rounds}\nsteps = 60\nwarmup = 10\n[builds]\nold = "old"\nnew = "new"\n'
    )
    python = f"cd {ROOT} && exec {sys.executable} -m {worker}"
    device = Computer(
        LocalTransport("local"), "local", str(folder / "host"), lambda job, results: f"{python} {job} {results}"
    )
    options = Options(folder / "out", "session", resume=True, allowed=("BUSY", "SPACE", "MEMORY"))
    assert run_all([device], read_plan(folder / "plan.toml"), options, print) == {"local": []}
    old, new = (read_results(folder / f"out/local.{build}.jsonl") for build in ("old", "new"))
    (found,) = compare(old, new, THRESHOLD)
    return found


@pytest.fixture
def ids_name_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a worker can know the build that is to be slow."""

    def named(subject: Subject, round: int, attempt: int) -> str:
        return f"{subject.variant.build}-{new_id(subject, round, attempt)}".replace("new-", "x-new-")

    monkeypatch.setattr(bench_module, "new_id", named)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net whose step takes about a millisecond."""
    return build_program(tmp_path_factory.mktemp("wide") / "net.tflite", width=4096, batch=32)


@pytest.mark.slow
def test_the_same_build_twice(wide: Path, tmp_path: Path) -> None:
    """Twenty comparisons of a build with itself raise at most one alarm."""
    found = [measure(tmp_path / str(i), wide, "scripts.harness.worker", rounds=8) for i in range(20)]
    print([(c.verdict, round(c.ratio, 3)) for c in found])
    assert sum(c.verdict == "FAIL" for c in found) <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("ids_name_builds")
def test_a_slowdown_of_eight_percent(wide: Path, tmp_path: Path) -> None:
    """On a machine with other work on it a WARN may come first; then it asks for more rounds, and gets them."""
    for rounds in (24, 48, 96):
        found = measure(tmp_path, wide, "tests.harness.slow_worker", rounds)
        print(found)
        if found.verdict != "WARN":
            break
    assert found.verdict == "FAIL"
    assert 1.06 < found.ratio < 1.11
