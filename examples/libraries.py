"""Libraries that only some examples need, imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from converter.errors import UsageError
from keras_frontend import runs_jax

_PACKAGES = {"flax": "flax", "keras": "keras", "sklearn": "scikit-learn"}


def library(module: str) -> Any:
    """A module of an optional library.

    Raises:
        UsageError: it is not installed.
    """
    runs_jax()  # chooses Keras' backend, unless the person already has
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = _PACKAGES[module.partition(".")[0]]
        raise UsageError(f"this example needs {package}, which is not installed: pip install {package}") from error
