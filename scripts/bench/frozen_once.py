"""What a program takes whose frozen first layers are in one signature: file, memory and CPU time of a training.

    .venv/bin/python scripts/bench/frozen_once.py

MobileNetV2 0.35 of 96 x 96, its head trains, batch 8, Adam, one thread. Each row is of a process of its own, which has
imported the runtime and made its rows: anonymous memory that it gains by a step, an evaluation and an inference, and
CPU time of ten epochs of 64 rows, with 64 held-out ones judged after each.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from converter.runtime import TrainingSession
from scripts.arguments import parser

SIGNATURES = {
    "`train,evaluate,infer`": ("train", "evaluate", "infer"),
    "`train,evaluate,infer,features`": ("train", "evaluate", "infer", "features"),
    "`features,train_features,evaluate_features,infer_features`": (
        "features",
        "train_features",
        "evaluate_features",
        "infer_features",
    ),
}
BATCH, ROWS, SIDE, CLASSES, EPOCHS = 8, 64, 96, 10, 10
#: Large blocks have pages of their own, which go back when they are freed: how the heap lies says nothing.
STEADY_HEAP = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072:glibc.malloc.arena_max=1"}


def build(folder: Path) -> list[Path]:
    """Write the programs; return their paths in the order of SIGNATURES."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    import converter

    keras.utils.set_random_seed(0)
    net = keras.applications.MobileNetV2((SIDE, SIDE, 3), alpha=0.35, weights=None, include_top=False, pooling="avg")
    model = keras.Model(net.input, keras.layers.Dense(CLASSES, name="head")(net.output))
    options = {"update": "head", "optimizer": "adam", "batch": BATCH, "loss": "sparse_categorical_crossentropy"}
    made = (converter.build(model, signatures=signatures, **options) for signatures in SIGNATURES.values())
    return [program.write(folder / f"{number}.tflite") for number, program in enumerate(made)]


def measure(path: Path) -> dict[str, float]:
    """Return anonymous megabytes that this process gains, and CPU seconds of a training."""
    rng = np.random.default_rng(0)
    x, held_out = (rng.random((ROWS, SIDE, SIDE, 3), np.float32) for _ in range(2))
    y = (np.arange(ROWS) % CLASSES).astype(np.int32)
    ctypes.CDLL(None).malloc_trim(0)
    before = _anonymous()
    found = {}

    def gained(name: str, work: Callable[[], object]) -> None:
        work()
        found[name] = _anonymous() - before

    with TrainingSession(path) as session:
        gained("a step", lambda: session.train(x[:BATCH], y[:BATCH]))
        gained("and `evaluate`, `infer`", lambda: (session.evaluate(held_out, y), session.infer(x[:BATCH])))
        begun = time.process_time()
        session.fit(x, y, epochs=EPOCHS, validation=(held_out, y), progress=False)
        found["seconds"] = time.process_time() - begun
    return found


def _anonymous() -> float:
    """Return the anonymous megabytes of this process."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def main() -> None:
    """Measure each program in a process of its own and print a table."""
    arguments = parser(__doc__)
    arguments.add_argument("--program", type=Path, help="measure this one in this process, and print JSON")
    asked = arguments.parse_args()
    if asked.program is not None:
        print(json.dumps(measure(asked.program)))
        return
    with TemporaryDirectory() as folder:
        print("| signatures | file, MB | a step, MB | and `evaluate`, `infer` | fit, CPU s |\n|---|---|---|---|---|")
        for name, path in zip(SIGNATURES, build(Path(folder)), strict=True):
            command = [sys.executable, "-m", "scripts.bench.frozen_once", "--program", path]
            run = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | STEADY_HEAP)
            step, both, seconds = json.loads(run.stdout.splitlines()[-1]).values()
            print(f"| {name} | {path.stat().st_size / 1e6:.2f} | {step:.1f} | {both:.1f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
