"""Model export: a plain inference model, or its weights, from a program and a state."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from converter.program.assembly import assemble, is_of_file
from converter.program.file import ProgramFile
from converter.program.merge import check_merges, read_merge, stored_weights, weights_of_model
from converter.program.parameters import check_tensors, real_tensors
from converter.runtime.export.fold import folded
from converter.runtime.export.resize import is_resizable, rows_of, with_rows
from converter.runtime.export.shrink import with_float16, with_int8_weights
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import restore_state
from converter.runtime.state.state_dict import pt_file, whole_counters
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.files import write_atomically
from converter.support.litert import Interpreter

#: How weights are kept in fewer bytes.
_SMALLER = {"float16": with_float16, "dynamic": with_int8_weights}
#: What brings the library that writes a format.
_EXTRAS = {".pt": "torch", ".safetensors": "safetensors"}

#: A state: the tensors of `session.state()`, a state file, or None for what was built.
State = Mapping[str, np.ndarray] | str | os.PathLike | None


class ExportLoss(NamedTuple):
    """What smaller weights change: the largest difference of an output, and the largest number that is exact there."""

    difference: float
    largest: float


class Exported(NamedTuple):
    """What was written.

    Attributes:
        nbytes: of the file.
        whole: of the file with weights in float32.
        loss: what it costs to keep them in fewer bytes, on random inputs; None for float32.
        rows: that it takes.
        is_resizable: whether it takes as many as its inputs are resized to.
    """

    nbytes: int
    whole: int
    loss: ExportLoss | None
    rows: int
    is_resizable: bool


def export_inference(
    program: ProgramFile,
    path: str | os.PathLike,
    state: State = None,
    quantize: str | None = None,
    exact: bool = True,
    batch: int | None = None,
) -> Exported:
    """Writes the model with the weights of a state as a plain `.tflite`: no variables, nothing to train.

    Its only signature is `infer`. Its inputs and outputs have the names that the model's author gave them (of an
    argument, of `keras.Input`, of the last layer of Keras, the key of a dict), and those of the program where there
    are none. It takes one row, or as many as its inputs are resized to (`resize_tensor_input`; a signature runner
    does it by itself). The operators are the program's own, on the same numbers, so the results are those of
    `session.infer`, of as many rows to the bit. Of a program with low-rank adapters it is the model without them,
    with the weights W + alpha / rank * A B (of DoRA with the columns' lengths): equal to rounding, about 1e-6 of the
    largest output.

    Of a program that was made from a `.tflite` it is that file with what trained in it: its signatures, names, metadata
    and the constants that did not train are the file's, `exact` changes nothing, and results are equal to rounding.

    Where rows of a batch influence each other, or an operator stands for a number of them (a scatter), it takes the
    rows of the program and refuses others: `manifest.calls["infer"].fixed` says why. A strided transposed
    convolution finds its rows while it runs, by the runtime's own kernel: with `batch` delegates take it, too.

    Args:
        program: what was trained.
        path: where to.
        state: whose weights; see `State`.
        quantize: weights in fewer bytes: `float16` (half of them; unpacked when the file is loaded, so that any runtime
            and delegate computes in its own precision) or `dynamic` (a quarter: int8 weights in dense layers and
            convolutions, whose kernels round activations to int8 as well, row by row). None: float32.
        exact: to the last bit, where weights are float32. False makes trained convolutions run on the delegate's
            kernels, which want constants and are faster; they round differently. Adapters are merged in any case.
        batch: rows that it takes, with no shape that is found while it runs; None: one, or as many as it is resized to.

    Returns:
        Its size, and what `quantize` changes.

    Raises:
        UsageError: the program has no signature `infer`, the state is not one of this program, `quantize` is none of
            these, the model takes no such number of rows, or the file cannot be written.
    """
    if quantize is not None and quantize not in _SMALLER:
        raise UsageError(f"quantize must be {' or '.join(map(repr, _SMALLER))}, got {quantize!r}", page="program-files")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UsageError(f"batch must be a number of rows, 1 or more, got {batch!r}", page="program-files")
    tensors, merge = state_tensors(program, state), read_merge(program)
    merged = {} if merge is None else stored_weights(program, merge, tensors)
    stored = real_tensors(program.manifest, tensors)
    data = assemble(program, stored, merged, lambda: weights_of_model(program, tensors))
    if not is_of_file(program) and (merge is not None or not exact or quantize is not None):
        data = folded(data, absorbing=not exact or quantize is not None)
    fixed = _fixed(program)
    if batch is not None:
        data = with_rows(data, batch, fixed)
    small = data if quantize is None else _SMALLER[quantize](data)
    loss = None if quantize is None else _loss(data, small)
    write_atomically(path, small)
    return Exported(len(small), len(data), loss, rows_of(small), fixed is None and is_resizable(small))


def _fixed(program: ProgramFile) -> str | None:
    """Return why the model takes its own number of rows and no other; None where it takes any."""
    infer = program.manifest.calls["infer"]
    return infer.fixed or (infer.mixing and f"rows influence each other ({infer.mixing})")


def _loss(whole: bytes, small: bytes) -> ExportLoss:
    """Return how far two plain models are apart on the same random inputs."""
    rng, results = np.random.default_rng(0), list[list[np.ndarray]]()
    feed = list[np.ndarray]()
    for data in (whole, small):
        runtime = Interpreter(model_content=data)
        runtime.allocate_tensors()
        given = runtime.get_input_details()
        for details in given[len(feed) :]:
            shape, dtype = details["shape"], details["dtype"]
            # Of integers, which may be places in a table, only 0 and 1 are safe.
            numbers = rng.standard_normal(shape) if dtype == np.float32 else rng.integers(0, 2, shape)
            feed.append(numbers.astype(dtype))
        for details, array in zip(given, feed, strict=True):
            runtime.set_tensor(details["index"], array)
        runtime.invoke()
        outputs = [runtime.get_tensor(details["index"]) for details in runtime.get_output_details()]
        results.append([array.astype(np.float64) for array in outputs])
    exact, found = results
    return ExportLoss(
        max(float(np.abs(one - other).max()) for one, other in zip(exact, found, strict=True)),
        max(float(np.abs(array).max()) for array in exact),
    )


def export_weights(program: ProgramFile, path: str | os.PathLike, state: State = None) -> int:
    """Writes the trained weights as an `.npz`, `.safetensors` or, for PyTorch, `.pt` file; see `trained_weights`.

    Raises:
        UsageError: as `export_inference`, the program does not hold the weights that its adapters change, or the
            library that writes the format is not installed.
    """
    suffix = Path(path).suffix
    if suffix in _EXTRAS:
        require(_EXTRAS[suffix], f"a {suffix} file")
    check_merges(program)
    weights = whole_counters(trained_weights(program, state))
    if suffix == ".pt":
        data = pt_file(weights)
    elif suffix == ".safetensors":
        from safetensors.numpy import save

        data = save({name: np.array(array, order="C") for name, array in weights.items()})
    else:
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **weights)
        data = file.getvalue()
    write_atomically(path, data)
    return len(data)


def trained_weights(program: ProgramFile, state: State = None) -> dict[str, np.ndarray]:
    """Return the weights that train, by the model's own names, in its own layout and full shape; adapters are merged.

    Raises:
        UsageError: the state is not one of this program.
    """
    return weights_of_model(program, state_tensors(program, state))


def state_tensors(program: ProgramFile, state: State) -> Mapping[str, np.ndarray]:
    """Return the tensors of a state by name, checked.

    Raises:
        UsageError: it is not one of this program, or not finite.
    """
    if state is None:
        return {t.tensor: program.initial(t) for t in program.manifest.state_tensors}
    if not isinstance(state, Mapping):
        state, _ = restore_state(state, StateSpec.of(program))
    tensors = {name: np.asarray(array) for name, array in state.items()}
    check_tensors(program.manifest, tensors, "state")
    if lost := next((name for name, a in tensors.items() if a.dtype.kind == "f" and not np.isfinite(a).all()), None):
        raise UsageError(f"state: {lost} holds NaN or infinity; nothing was written", page="program-files")
    return tensors
