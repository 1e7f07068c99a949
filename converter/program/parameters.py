"""Trained weights as the user knows them, from the tensors of a state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.program.file import ProgramFile
from converter.program.manifest import Manifest
from converter.support.errors import UsageError


def check_tensors(manifest: Manifest, tensors: Mapping[str, np.ndarray], where: str) -> None:
    """Raises UsageError unless these are the tensors of a state of this program, `where` says of whom."""
    wanted = {t.tensor: (t.shape, t.dtype) for t in manifest.state_tensors}
    if {name: (array.shape, array.dtype.name) for name, array in tensors.items()} != wanted:
        raise UsageError(f"{where}: its tensors are not those of this program", page="program-files")
    for choice in manifest.choices:
        if not choice.is_good(tensors[choice.indices]):
            raise UsageError(
                f"{where}: {choice.indices} are not different channels of the {choice.channels} of {choice.weight}",
                page="program-files",
            )


def real_tensors(manifest: Manifest, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a state, those in int8 as the float32 numbers that they stand for."""
    scaled = [piece for spec in manifest.parameters for piece in spec.pieces if piece.scales is not None]
    return {**state, **{piece.tensor: piece.real(state) for piece in scaled}}


def parameters_of(program: ProgramFile, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the trained weights of a state, by the model's own names, in its own layout and full shape."""
    # Here: a session that only trains does without the IR, 3 MB of Python's memory.
    from converter.ir.view import View

    full = {}
    for spec in program.manifest.parameters:
        full[spec.name] = np.empty(spec.shape, spec.dtype)
        rest = program.frozen(spec)
        if spec.frozen is not None and rest is not None:
            View.from_json(list(spec.frozen.view)).scatter(full[spec.name], rest)
        for piece in spec.pieces:
            View.from_json(list(piece.view)).scatter(full[spec.name], piece.real(state))
    return full
