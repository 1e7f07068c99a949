"""Steps of a program in the stock wheel of TensorFlow Lite Micro, whose state goes from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from converter.program.file import read_program

Arrays = Mapping[str, np.ndarray]


def trained(program: bytes, rows: Iterable[tuple[np.ndarray, np.ndarray]], rate: float) -> tuple[list[float], Arrays]:
    """Return the losses of steps, and the state behind the last, by name.

    Args:
        program: built with `signatures=["train"]` and `batch=1`.
        rows: x and y of one row for each step.
        rate: learning rate.
    """
    from tflite_micro.python.tflite_micro import runtime

    file = read_program(program)
    entry = file.manifest.signatures["train"]
    interpreter = runtime.Interpreter.from_bytes(program, arena_size=1 << 20)
    state = {tensor.tensor: file.initial(tensor) for tensor in file.manifest.state_tensors}
    fixed = {"learning_rate": np.full(1, rate, np.float32), "weight": np.ones(1, np.float32)}
    losses = []
    for x, y in rows:
        given = {"x": x[None], "y": np.asarray(y)[None]} | fixed | state
        for place, tensor in enumerate(entry.inputs):
            value = given[tensor.name]
            interpreter.set_input(np.ascontiguousarray(value).reshape(tensor.shape), place)
        interpreter.invoke()
        made = {tensor.name: np.array(interpreter.get_output(i)) for i, tensor in enumerate(entry.outputs)}
        losses.append(float(made["loss"].reshape(())))
        state = {name: made[name].reshape(array.shape) for name, array in state.items()}
    return losses, state
