"""A server that lies, asks too much, or goes away: `faulty.py`, in Flower's environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from tests.federated.flower import BIN, needs_flower, settings
from tests.federated.people import built, rows_of
from tests.tree import ROOT


@needs_flower
def test_a_hostile_server_at_worst_ends_the_round(tmp_path: Path) -> None:
    built("head").write(tmp_path / "program.tflite")
    x, y = rows_of(0)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    command = [BIN / "python", "-m", "tests.federated.faulty", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=settings(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert done.stdout.endswith("all went as it should\n")
