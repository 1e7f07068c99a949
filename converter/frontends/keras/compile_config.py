"""Compile configuration of a Keras model: as Keras writes it, and what that leaves out."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.frontends.keras.archive import COMPILED, WEIGHTS

#: Entries that no configuration has: of an optimizer, the weights that do not decay, and how many steps it has done.
UNDECAYED, STEPS_DONE = "excluded_from_weight_decay", "steps_done"

#: Where an archive's weights hold the number of steps.
_ITERATIONS = "optimizer/vars/0"


def compile_config(model: Any) -> Mapping[str, Any] | None:
    """Return that of a live model; None where it is not compiled."""
    if not getattr(model, "compiled", False):
        return None
    try:
        config = dict(model.get_compile_config())
    except Exception:  # Keras raises errors of many kinds for a loss that is a lambda or a local class
        return {"loss": {"class_name": "function", "config": "the compiled loss"}}
    config["loss"] = with_options(config.get("loss"), getattr(model, "loss", None))
    optimizer = config.get("optimizer")
    if isinstance(optimizer, Mapping) and isinstance(optimizer.get("config"), Mapping):
        config["optimizer"] = {**optimizer, "config": {**optimizer["config"], **_of_optimizer(model)}}
    return config


def archived_config(path: Path, config: Mapping[str, Any]) -> Any:
    """Return that of a checked archive, with the number of steps that its optimizer has done."""
    compiled: Any = config.get(COMPILED)
    optimizer = compiled.get("optimizer") if isinstance(compiled, Mapping) else None
    if not isinstance(optimizer, Mapping) or not isinstance(optimizer.get("config"), Mapping):
        return compiled
    done = {STEPS_DONE: _steps_in(path)}
    return {**compiled, "optimizer": {**optimizer, "config": {**optimizer["config"], **done}}}


def _steps_in(path: Path) -> int:
    """Return what the first variable of an archive's optimizer counts; 0 for an archive without one."""
    import h5py

    with zipfile.ZipFile(path) as archive:
        if (name := next(name for name in WEIGHTS if name in archive.namelist())).endswith(".npz"):
            return 0
        with archive.open(name) as member, h5py.File(member, "r") as root:
            steps = root.get(_ITERATIONS)
            counts = isinstance(steps, h5py.Dataset) and steps.shape == () and steps.dtype.kind in "iu"
            return int(steps[()]) if counts else 0


def with_options(entry: Any, loss: Any) -> Any:
    """Return the configuration of losses with the options that Keras does not write: `delta` of Huber, `axis`."""
    if isinstance(entry, list) and isinstance(loss, list | tuple):
        return [with_options(*pair) for pair in zip(entry, loss, strict=True)]
    if not isinstance(entry, Mapping):
        return entry
    if isinstance(loss, Mapping):
        return {name: with_options(one, loss.get(name)) for name, one in entry.items()}
    options = getattr(loss, "_fn_kwargs", None)
    if isinstance(options, Mapping) and isinstance(entry.get("config"), Mapping):
        return {**entry, "config": {**options, **entry["config"]}}
    return entry


def _of_optimizer(model: Any) -> dict[str, Any]:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    undecayed = [v.path for v in model.trainable_variables if not optimizer._use_weight_decay(_met(v))]
    return {UNDECAYED: undecayed, STEPS_DONE: int(optimizer.iterations)}


def _met(variable: Any) -> Any:
    """Return a variable as Keras' optimizer meets it: on TensorFlow that one's own, by whose name it decides."""
    own = variable.value
    return own if isinstance(getattr(own, "name", None), str) else variable
