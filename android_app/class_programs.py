"""A program whose classes come at run time, and what the host makes of it: for the tests in Kotlin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optax
from models import CLASSES, model

import converter
from converter.runtime import TrainingSession

#: The class that is added, of the first rows of the data, each number as far on the other side of 0.
ADDED, ROWS = "zwölf", 5
#: What is added to data whose class means then have biases below -30,000.
FAR = 300


def write_classes(out: Path, batch: int) -> None:
    """Write OUT/classes.tflite, what it infers with class means and one class more, and the state with its name.

    Args:
        out: the folder; the data of `mlp` are there.
        batch: rows of a step.
    """
    source = model("mlp", np.random.default_rng(0))
    program = converter.build(
        source,
        optimizer="adam",
        update="head",
        head="class_means",
        classes=f"{CLASSES}+2",
        batch=batch,
        target="tflite-2.16",
    )
    program.write(out / "classes.tflite")
    (shape,) = (value.shape[1:] for value in source.inputs)
    x = np.fromfile(out / "mlp.x", np.float32).reshape(-1, *shape)
    y = np.fromfile(out / "mlp.y", np.int32)
    with TrainingSession(out / "classes.tflite") as session:
        session.set_class_means(x, y)
        session.add_class(ADDED, -x[:ROWS])
        session.infer(np.concatenate([x[:ROWS], -x[:ROWS]])).tofile(out / "classes.output")
        (out / "classes.state").unlink(missing_ok=True)
        session.save(out / "classes.state")
    _write_moved(out, x, y, batch)
    _write_one_hot(out, x, y, batch)


def _write_one_hot(out: Path, x: np.ndarray, y: np.ndarray, batch: int) -> None:
    """Write OUT/one_hot.tflite, whose targets are a number a class, and what it infers with class means."""
    source = model("mlp", np.random.default_rng(0))
    asked = {"optimizer": "adam", "update": "head", "head": "class_means", "batch": batch, "target": "tflite-2.16"}
    converter.build(source, loss="categorical_crossentropy", **asked).write(out / "one_hot.tflite")
    with TrainingSession(out / "one_hot.tflite") as session:
        session.set_class_means(x, y)
        session.infer(x[:ROWS]).tofile(out / "one_hot.output")


def _write_moved(out: Path, x: np.ndarray, y: np.ndarray, batch: int) -> None:
    """Write OUT/moved.tflite, whose optimizer keeps copies of weights that are built as zeros, and what it infers.

    Once trained from class means on, and once with class means far from zero.
    """
    source = model("mlp", np.random.default_rng(0))
    source.params["b"]["w"] = np.zeros_like(source.params["b"]["w"])
    converter.build(
        source,
        optimizer=optax.contrib.schedule_free_sgd(0.02),
        update="head",
        head="class_means",
        classes=f"{CLASSES}+2",
        batch=batch,
        target="tflite-2.16",
    ).write(out / "moved.tflite")
    with TrainingSession(out / "moved.tflite") as session:
        session.set_class_means(x, y)
        session.add_class(ADDED, -x[:ROWS])
        session.fit(x, y, epochs=1, shuffle=False, progress=False)
        session.infer(x[:ROWS]).tofile(out / "moved.output")
        session.reset()
        session.set_class_means(x + FAR, y)
        assert session.parameters()["b/b"][:CLASSES].max() < -30_000
        session.infer(-x[:ROWS]).argmax(1).astype(np.int32).tofile(out / "moved.labels")
