"""Files of several heads on one backbone, and what the host makes of one: for the tests in Kotlin and of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from models import CLASSES, model

import converter
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.runtime.export import export_inference
from jax_frontend import Model

#: Rows that the head infers.
ROWS = 11
#: The head that others do again, and its training (recorded_traces.py).
HEAD, TRACE = "frogs", "a-head-of-two"


def write_heads(out: Path, batch: int) -> None:
    """Write OUT/heads.tflite, whose heads differ in all that they may, and OUT/twins.tflite, whose heads are one model.

    Args:
        out: the folder.
        batch: rows of a step.
    """
    options = {"batch": batch, "target": "tflite-2.16"}
    heads = converter.build_heads(
        {"birds": model("mlp", np.random.default_rng(0)), HEAD: _other()},
        update="head",
        optimizer={"birds": "adam", HEAD: "sgd"},
        **options,
    )
    heads.write(out / "heads.tflite")
    same = model("mlp", np.random.default_rng(0))
    twins = converter.build_heads(
        {"mine": same, "yours": same}, update="head", optimizer="adam", micro_batch=2, **options
    )
    twins.write(out / "twins.tflite")


def write_learned_head(out: Path) -> None:
    """Write OUT/heads.plain, the head exported as it was trained, and OUT/heads.output, what it gives for some rows."""
    state = out / f"trace-{TRACE}.state"
    export_inference(read_program(out / "heads.tflite", HEAD), out / "heads.plain", state)
    x = np.fromfile(out / "mlp.x", np.float32).reshape(-1, 6, 6, 1)[:ROWS]
    with TrainingSession(out / "heads.tflite", head=HEAD) as session:
        session.restore(state)
        session.infer(x).tofile(out / "heads.output")


def _other() -> Model:
    """Return a model with the layer `a` of `mlp` and more classes."""
    rng = np.random.default_rng(0)
    source, last = model("mlp", rng), rng.standard_normal((16, CLASSES + 2)).astype(np.float32) / 4
    params: dict[str, Any] = {**source.params, "b": {"w": last, "b": np.zeros(CLASSES + 2, np.float32)}}
    return Model(source.apply, params, source.inputs)
