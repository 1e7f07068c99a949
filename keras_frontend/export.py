"""A `.keras` file with other weights."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from converter.errors import UsageError, nearest
from converter.program.files import write_atomically
from keras_frontend.importer import load, named_variables


def with_weights(model: Path, weights: Mapping[str, np.ndarray], out: Path) -> int:
    """Writes a copy of a `.keras` file in which some weights have other values; what it was compiled with is left out.

    Args:
        model: the `.keras` file that the weights are of.
        weights: by the path of the variable, as the front end names it.
        out: where to.

    Returns:
        Bytes of the file.

    Raises:
        UsageError: the model cannot be loaded, has no such weight, or one of another shape.
        UnsupportedError: the model holds code.
    """
    made = load(model)
    variables = named_variables(made)
    for name, array in weights.items():
        if name not in variables:
            raise UsageError(
                f"{model} has no weight {name!r}: the program is of another model.{nearest(name, variables)}"
            )
        if tuple(variables[name].shape) != array.shape:
            raise UsageError(
                f"{model}: its {name} has the shape {list(variables[name].shape)}, not {list(array.shape)}"
            )
        variables[name].assign(array)
    with tempfile.TemporaryDirectory(prefix="pocketune-") as folder:
        path = Path(folder) / "model.keras"
        made.save(path)
        data = path.read_bytes()
    write_atomically(out, data)
    return len(data)
