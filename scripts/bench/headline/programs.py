"""The program by which a side of ours learns a task."""

from __future__ import annotations

from sides import Method
from tasks import Split, Task

import converter

import keras  # isort: skip  after tasks, which choose its backend

_WITH_FEATURES = ("features", "train_features", "infer_features")


def program_of(task: Task, model: keras.Model, method: Method, split: Split, target: str) -> converter.Program:
    """Return the program; frozen layers are rounded by validation rows.

    They are in `features` alone, so that the runtime packs their weights once.
    """
    signatures = ("train", "infer") if method.update == "full" else _WITH_FEATURES
    return converter.build(
        model,
        loss=task.loss,
        optimizer="adam",
        update=method.update,
        batch=task.batch,
        target=target,
        signatures=signatures,
        head="class_means" if method.means else None,
        head_reads=task.blocks if method.blocks else None,
        frozen=method.frozen,
        calibration=split.validation.x[:100] if method.frozen == "int8" else None,
    )
