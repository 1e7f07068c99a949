"""The same class added by the Kotlin trainer, in TFLite's official Android library on a JVM."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from adding import Problem

from converter.runtime import TrainingSession

HERE = Path(__file__).resolve().parent
_RUN = HERE.parents[2] / "android_app" / "desktop" / "run"
#: Held-out rows that both answer.
_ROWS = 128


def same_on_jvm(program: bytes, given: Problem) -> int:
    """Return how many held-out rows were answered; each has the host's answer, by either method.

    Raises:
        RuntimeError: some answers differ.
    """
    rows = given.held_out.x[:_ROWS]
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "program.tflite").write_bytes(program)
        for name, array in (("own", given.own.x), ("few", given.few), ("held_out", rows)):
            array.astype("<f4" if array.dtype.kind == "f" else "<i4").tofile(folder / f"{name}.x")
        given.own.y.astype("<i4").tofile(folder / "own.y")
        done = subprocess.run([_RUN, HERE / "AddClass.kt", folder], stdout=subprocess.PIPE, text=True, check=True)
    found = {method: list(map(int, labels)) for method, *labels in map(str.split, done.stdout.splitlines())}
    wanted = _answers_here(program, given, rows)
    different = {name: int(np.sum(np.array(found[name]) != labels)) for name, labels in wanted.items()}
    if any(different.values()):
        raise RuntimeError(f"of {len(rows)} rows the JVM answers otherwise: {different}")
    return len(rows)


def _answers_here(program: bytes, given: Problem, rows: np.ndarray) -> dict[str, np.ndarray]:
    with TrainingSession(program) as session:
        session.set_class_means(given.own.x, given.own.y)
        label = session.add_class("added", given.few)
        found = {"means": session.infer(rows).argmax(1)}
        x = np.concatenate([given.own.x, given.few])
        session.set_class_means(x, np.append(given.own.y, np.full(len(given.few), label)), "auto")
        return found | {"discriminant": session.infer(rows).argmax(1)}
