"""Keras backend of this process, and a process of its own for the JAX backend where it is another."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from converter.support import logs
from converter.support.environment import environment

if TYPE_CHECKING:
    from converter.frontends.keras.importer import ImportedKeras

#: What the child is asked: path of the archive, batch, inputs [(shape, dtype), ...] or None, variable paths or None.
Request = tuple[str, int, list[tuple[tuple[int, ...], str]] | None, list[str] | None]

_TIMEOUT_SECONDS = 600


def runs_jax() -> bool:
    """Return whether Keras runs on JAX here. Import it on JAX where nobody has imported it or chosen otherwise."""
    if "keras" not in sys.modules:
        if os.environ.get("KERAS_BACKEND", "jax") != "jax":
            return False
        with environment(KERAS_BACKEND="jax"), logs.without_chatter():  # Keras imports TensorFlow where there is one
            import keras  # noqa: F401
    return str(sys.modules["keras"].config.backend()) == "jax"


def import_in_child(request: Request) -> ImportedKeras:
    """Return an archive, imported by a child process that runs Keras on JAX.

    Raises:
        PocketuneError: whatever the child raised.
    """
    with tempfile.TemporaryDirectory(prefix="pocketune-") as folder:
        asked, answered = Path(folder) / "request", Path(folder) / "imported"
        asked.write_bytes(pickle.dumps(request))
        ran = subprocess.run(  # noqa: S603 (this interpreter, on files of our own)
            [sys.executable, "-m", "converter.frontends.keras.child", str(asked), str(answered)],
            env=os.environ
            | logs.silent_environment()
            | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(_import_path())},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
        if not answered.exists():
            raise RuntimeError(f"the process that traces the Keras model on JAX failed:\n{ran.stderr[-4000:]}")
        kind, content = pickle.loads(answered.read_bytes())  # noqa: S301 (our child wrote it, in a folder of our own)
    if kind == "refused":
        raise content
    return content


def _import_path() -> list[str]:
    root = str(Path(__file__).resolve().parents[__name__.count(".")])
    return [root, *(entry for entry in sys.path if entry)]
