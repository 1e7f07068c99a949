"""The runtimes that programs are run in, each in a process of its own environment."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
#: The Python of each runtime; `scripts/old_runtime` makes that of TensorFlow Lite 2.14.
PYTHONS = {"LiteRT 2.3": Path(sys.executable), "TFLite 2.14": ROOT / ".venv-tflite-2.14" / "bin" / "python"}

Call = tuple[str, dict[str, np.ndarray]]


def run(runtime: str, jobs: list[tuple[bytes, list[Call]]]) -> list[Any]:
    """Return for each file the outputs of its calls with XNNPACK and without, or the text of the error."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "in"), Path(folder, "out")
        given.write_bytes(pickle.dumps(jobs, protocol=4))
        worker = Path(__file__).with_name("worker.py")
        done = subprocess.run([PYTHONS[runtime], worker, given, found], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{runtime} ended with {done.returncode}: {done.stderr[-2000:]}")
        return pickle.loads(found.read_bytes())  # noqa: S301  what our own worker wrote
