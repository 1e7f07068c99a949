"""Export of weights to a `.keras` file."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converter.frontends.keras.archive import COMPILED, CONFIG, check_archive
from converter.frontends.keras.importer import load, named_variables
from converter.support.errors import UsageError, nearest
from converter.support.files import write_atomically
from converter.training.schemes.shortcuts import A as SKIP_A
from converter.training.schemes.shortcuts import B as SKIP_B


class Copied(NamedTuple):
    """What was written.

    Attributes:
        nbytes: of the file.
        is_compiled: whether it says what the model was compiled with.
    """

    nbytes: int
    is_compiled: bool


def with_weights(model: Path, weights: Mapping[str, np.ndarray], out: Path) -> Copied:
    """Writes a copy of a `.keras` file in which some weights have other values.

    It is compiled as the file was: loss, optimizer, rate, metrics. The optimizer's slots and its count of steps are
    left out, so that Keras, or a build, begins with it again: those of the file are of other weights.

    Args:
        model: the `.keras` file that the weights are of.
        weights: by the path of the variable, as the front end names it.
        out: where to.

    Returns:
        What was written.

    Raises:
        UsageError: the model cannot be loaded, has no such weight, or one of another shape.
        UnsupportedError: the model holds code.
    """
    made = load(model)
    variables = named_variables(made)
    for name, array in weights.items():
        if name.endswith((SKIP_A, SKIP_B)):
            raise UsageError(
                f"a .keras file has no place for Skip-LoRA, as {name}, which is no weight of one of its layers: export "
                "a plain .tflite, which has it, or the weights as .npz",
                page="keras-files",
            )
        if name not in variables:
            raise UsageError(
                f"{model} has no weight {name!r}: the program is of another model.{nearest(name, variables)}",
                page="keras-files",
            )
        if tuple(variables[name].shape) != array.shape:
            raise UsageError(
                f"{model}: its {name} has the shape {list(variables[name].shape)}, not {list(array.shape)}",
                page="keras-files",
            )
        variables[name].assign(array)
    with tempfile.TemporaryDirectory(prefix="pocketune-") as folder:
        path = Path(folder) / "model.keras"
        made.save(path)
        data = path.read_bytes()
    # As text: an object that is made of it may run code of the file, or of a package that is not here.
    compiled = check_archive(model).get(COMPILED)
    if compiled:
        data = _with_config(data, compiled)
    write_atomically(out, data)
    return Copied(len(data), bool(compiled))


def _with_config(data: bytes, compiled: Any) -> bytes:
    """Return an archive whose model is compiled so."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(made, "w") as after:
        for member in before.infolist():
            content = before.read(member)
            if member.filename == CONFIG:
                content = json.dumps({**json.loads(content), COMPILED: compiled}).encode()
            after.writestr(member, content)
    return made.getvalue()
