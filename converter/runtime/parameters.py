"""The trained weights as the person knows them, from the tensors of a state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.ir.view import View
from converter.program_file import ProgramFile


def parameters_of(program: ProgramFile, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The trained weights of a state, by the model's own names, in its own layout and full shape."""
    full = {}
    for spec in program.manifest.parameters:
        full[spec.name] = np.empty(spec.shape, spec.dtype)
        rest = program.frozen(spec)
        if spec.frozen is not None and rest is not None:
            View.from_json(list(spec.frozen.view)).scatter(full[spec.name], rest)
        for piece in spec.pieces:
            View.from_json(list(piece.view)).scatter(full[spec.name], state[piece.tensor])
    return full
