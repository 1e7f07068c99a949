"""SavedModels of TensorFlow: its own converter makes a TFLite file of them, in a process of its own."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from converter.support import logs
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.libraries import loaded

_SECONDS = 1800
#: What the process runs: TensorFlow is no part of this one.
_CONVERT = """
import sys
import tensorflow as tf
source, made, *keys = sys.argv[1:]
converter = tf.lite.TFLiteConverter.from_saved_model(source, signature_keys=keys or None)
with open(made, "wb") as file:
    file.write(converter.convert())
"""


def is_saved_model(path: Any) -> bool:
    """Return whether something is the path of a SavedModel, a directory."""
    return isinstance(path, str | os.PathLike) and (Path(path) / "saved_model.pb").is_file()


def is_of_tensorflow(model: Any) -> bool:
    """Return whether something is a live model that TensorFlow writes: a tf.Module, or a Keras model on TensorFlow."""
    internal = getattr(loaded("tensorflow"), "__internal__", None)  # another package of this name has none
    return internal is not None and isinstance(model, internal.tracking.AutoTrackable)


def saved(model: Any) -> Path:
    """Write a live model as a SavedModel; return where it lies until this process ends."""
    folder = _folder() / str(getattr(model, "name", None) or type(model).__name__)
    if hasattr(model, "export"):
        model.export(str(folder), verbose=False)
    else:
        loaded("tensorflow").saved_model.save(model, str(folder))
    return folder


def converted(path: str | os.PathLike, signature: str | None) -> Path:
    """Return the TFLite file of a SavedModel; it lies there until this process ends.

    Raises:
        UsageError: TensorFlow is not installed, or its converter does not take the model.
    """
    path = Path(path).resolve()
    return _converted(path, signature, (path / "saved_model.pb").stat().st_mtime_ns)


@lru_cache(8)
def _converted(path: Path, signature: str | None, _: int) -> Path:
    require("tensorflow", "a SavedModel")
    made = _folder() / f"{path.name}.tflite"
    keys = [] if signature is None else [signature]
    try:
        ran = subprocess.run(  # noqa: S603 (this interpreter)
            [sys.executable, "-P", "-c", _CONVERT, str(path), str(made), *keys],
            env=os.environ | logs.silent_environment(),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{path}: TensorFlow's converter takes more than {_SECONDS} s", page="tflite-files") from None
    if ran.returncode or not made.is_file():
        said = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        lacking = [line for line in said if re.match(r"(Flex|Custom|TF Select) ops?: ", line)]
        listed = "\n  ".join(dict.fromkeys(lacking or said[-4:])) or f"it ended with {ran.returncode}"
        raise UsageError(
            f"{path}: TensorFlow's converter does not make a TFLite file of it:\n  {listed}\nTake operations "
            "without a builtin out of the model, or compute them in the app before it",
            page="tflite-files",
        )
    return made


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pocketune-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
