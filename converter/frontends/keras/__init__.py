"""Keras front end: models, traced to the IR by Keras' JAX backend."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.frontends.keras.archive import check_archive
from converter.frontends.keras.compile_config import compile_config
from converter.frontends.keras.process import import_in_child, runs_jax
from converter.ir import Graph
from converter.support import logs
from converter.support.errors import UnsupportedError, UsageError
from converter.support.extras import require

if TYPE_CHECKING:
    import jax

    import jax_frontend
    from converter.frontends.keras.importer import ImportedKeras

__all__ = ["check_archive", "import_keras", "runs_jax", "to_jax_model", "trace"]

require("keras", "a Keras model")

_ADVICE = "Set KERAS_BACKEND=jax before Keras is imported."


def trace(model_or_path: Any, batch: int, inputs: Sequence[jax.ShapeDtypeStruct] | None = None) -> Graph:
    """Return the forward graph of a Keras model for one batch size: that of `import_keras`."""
    return import_keras(model_or_path, batch, inputs).graph


def import_keras(model_or_path: Any, batch: int, inputs: Sequence[jax.ShapeDtypeStruct] | None = None) -> ImportedKeras:
    """Return a Keras model: its forward graph for one batch size, and what it says of its training.

    Parameters carry Keras' `variable.path` and layout. Normalization uses the moving statistics, dropout is off.
    Where Keras runs another backend in this process, a child process traces the model on JAX.

    Args:
        model_or_path: a live `keras.Model`, or the path of a `.keras` file.
        batch: rows of the graph's inputs.
        inputs: shape and dtype of each input, where the model itself leaves them open.

    Raises:
        UsageError: a missing, corrupt or foreign file; a model without weights or with open shapes.
        UnsupportedError: layers that are code, or operations that cannot be compiled.
        NumericError: a weight is not finite.
    """
    if runs_jax():
        from converter.frontends.keras.importer import import_archive, import_live

        if not isinstance(model_or_path, str | os.PathLike):
            return import_live(model_or_path, batch, inputs)
        return import_archive(str(model_or_path), batch, _specs(inputs), None)
    specs = _specs(inputs)
    if isinstance(model_or_path, str | os.PathLike):
        check_archive(Path(model_or_path))
        return import_in_child((str(Path(model_or_path).resolve()), batch, specs, None))
    if not model_or_path.built:
        raise UsageError(
            f"the model {model_or_path.name!r} has no weights yet: call it once on a batch", page="keras-files"
        )
    with tempfile.TemporaryDirectory(prefix="pocketune-") as folder:
        path = Path(folder) / "model.keras"
        model_or_path.save(path)
        try:
            check_archive(path)
            traced = import_in_child((str(path), batch, specs, [v.path for v in model_or_path.variables]))
        except UnsupportedError as error:
            reason = str(error).replace(str(path), f"model {model_or_path.name!r}")
            raise UnsupportedError(
                f"{reason}\n{_ADVICE} It then need not be saved to be traced.", error.sites, page="keras-files"
            ) from None
    return replace(traced, compiled=compile_config(model_or_path))  # the file leaves out what the live model knows


def _specs(inputs: Sequence[jax.ShapeDtypeStruct] | None) -> list[tuple[tuple[int, ...], str]] | None:
    return None if inputs is None else [(tuple(spec.shape), str(spec.dtype)) for spec in inputs]


def to_jax_model(model_or_path: Any, inputs: Sequence[jax.ShapeDtypeStruct] | None = None) -> jax_frontend.Model:
    """Return a Keras model as a pure JAX function of its variables; needs the JAX backend in this process.

    Raises:
        UsageError: as `trace`, or Keras runs another backend.
    """
    if not runs_jax():
        raise UsageError(f"Keras runs another backend in this process. {_ADVICE}", page="keras-files")
    with logs.without_chatter():
        from converter.frontends.keras.importer import jax_model, load

    model = load(Path(model_or_path)) if isinstance(model_or_path, str | os.PathLike) else model_or_path
    return jax_model(model, inputs)
