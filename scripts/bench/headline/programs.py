"""The program by which a side of ours learns a task."""

from __future__ import annotations

from sides import Method
from tasks import Split, Task

import converter

import keras  # isort: skip  after tasks, which choose its backend


def program_of(task: Task, model: keras.Model, method: Method, split: Split, target: str) -> converter.Program:
    """Return the program; frozen layers are rounded by validation rows."""
    return converter.build(
        model,
        loss="sparse_categorical_crossentropy",
        optimizer="adam",
        update=method.update,
        batch=task.batch,
        target=target,
        signatures=("train", "evaluate", *(["features"] if method.update != "full" else [])),
        head="class_means" if method.means else None,
        head_reads=task.blocks if method.blocks else None,
        frozen=method.frozen,
        calibration=split.validation.x[:100] if method.frozen == "int8" else None,
    )
