"""Taking a trained model away: a plain inference model, or its weights, from a program and a state."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from converter.errors import UsageError
from converter.files import write_atomically
from converter.merge import merged_weights, read_merge, stored_weights
from converter.program_file import ProgramFile
from converter.recipe import assemble
from converter.runtime.parameters import parameters_of
from converter.runtime.state_file import load_state
from converter.tflite.fold import folded

#: A state: the tensors of `session.state()`, a state file, or None for what was built.
State = Mapping[str, np.ndarray] | str | os.PathLike | None


def export_inference(program: ProgramFile, path: str | os.PathLike, state: State = None, exact: bool = True) -> int:
    """Writes the model with the weights of a state as a plain `.tflite`: no variables, nothing to train.

    Its only signature is `infer`, with the inputs and outputs of the program's and as many rows. The operators are the
    program's own, on the same numbers, so the results are those of `session.infer`. Of a program with low-rank adapters
    it is the model without them, with the weights W + alpha / rank * A B: equal to rounding, about 1e-6 of the largest
    output.

    Args:
        program: what was trained.
        path: where to.
        state: whose weights; see `State`.
        exact: to the last bit. False makes trained convolutions run on the delegate's kernels, which want constants
            and are faster; they round differently. Adapters are merged in any case.

    Returns:
        Bytes of the file.

    Raises:
        UsageError: the program has no signature `infer`, the state is not one of this program, or the file cannot be
            written.
    """
    tensors, merge = _tensors(program, state), read_merge(program)
    data = assemble(program, tensors, {} if merge is None else stored_weights(program, merge, tensors))
    if merge is not None or not exact:
        data = folded(data)
    write_atomically(path, data)
    return len(data)


def export_weights(program: ProgramFile, path: str | os.PathLike, state: State = None) -> int:
    """Writes the trained weights as an `.npz` or `.safetensors` file; see `trained_weights`.

    Raises:
        UsageError: as `export_inference`, or the library that writes the format is not installed.
    """
    weights = trained_weights(program, state)
    if Path(path).suffix == ".safetensors":
        try:
            from safetensors.numpy import save
        except ModuleNotFoundError:
            raise UsageError("to write .safetensors: pip install 'pocketune[safetensors]'") from None
        data = save({name: np.ascontiguousarray(array) for name, array in weights.items()})
    else:
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **weights)
        data = file.getvalue()
    write_atomically(path, data)
    return len(data)


def trained_weights(program: ProgramFile, state: State = None) -> dict[str, np.ndarray]:
    """The weights that train, by the model's own names, in its own layout and full shape; adapters are merged.

    Raises:
        UsageError: the state is not one of this program.
    """
    tensors, merge = _tensors(program, state), read_merge(program)
    weights = parameters_of(program, tensors)
    if merge is not None:
        factors = {name for weight in merge.weights for name in (weight.a, weight.b)}
        weights = {name: array for name, array in weights.items() if name not in factors}
        weights |= merged_weights(program, merge, tensors)
    return weights


def _tensors(program: ProgramFile, state: State) -> Mapping[str, np.ndarray]:
    """The state's tensors by name, checked."""
    wanted = program.manifest.state_tensors
    if state is None:
        return {t.tensor: program.initial(t) for t in wanted}
    if not isinstance(state, Mapping):
        state = load_state(state, program.manifest.graph_hash).tensors
    tensors = {name: np.asarray(array) for name, array in state.items()}
    if {name: (a.shape, a.dtype.name) for name, a in tensors.items()} != {t.tensor: (t.shape, t.dtype) for t in wanted}:
        raise UsageError("state: its tensors are not those of this program")
    if lost := next((name for name, a in tensors.items() if a.dtype.kind == "f" and not np.isfinite(a).all()), None):
        raise UsageError(f"state: {lost} holds NaN or infinity; nothing was written")
    return tensors
