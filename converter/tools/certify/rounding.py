"""Rounding error bounds of a signature's results, in whatever order an engine adds numbers up.

Stochastic arithmetic (Parker, Monte Carlo Arithmetic, 1997): the signature runs operator by operator, and each number
that an operator has rounded becomes one of its neighbours. A gradient whose true value is zero, as that of a bias
before a normalization, is nothing but what rounding left of sums of large numbers; this says how large those were.
Of a float16 engine each number becomes one of the two of float16 around it: a ReLU whose input is next to zero falls to
either side, and the gradients of its unit are there or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from converter.program.flatbuffer import schema
from converter.program.flatbuffer.parts import SIGNATURE, tensor_name
from converter.program.flatbuffer.schema import generated
from converter.program.layers import OperatorEntry
from converter.runtime.session.gradient_range import LARGEST
from converter.tools.certify.calling import Arrays
from converter.tools.certify.reference import Cpu, neighbours

#: How often numbers are drawn. In float16, decisions that may fall to either side should do so at least once: of those
#: that an engine takes otherwise than the CPU, which rounds to the nearest, 1 of 250 is then missed.
DRAWS: dict[str, int] = {"float32": 3, "float16": 16}


def draws(entry: OperatorEntry, feed: Mapping[str, np.ndarray], precision: str = "float32") -> list[Arrays]:
    """Return the results of a signature, each time rounded otherwise.

    Args:
        entry: the signature.
        feed: its inputs.
        precision: what the engine computes in. In float16 inputs and constants are rounded too.
    """
    half = precision == "float16"
    rngs = [np.random.default_rng(seed) for seed in range(DRAWS[precision])]
    runs = [
        {index: _around(feed[name], rng) if half else feed[name] for index, name in entry.inputs.items()}
        for rng in rngs
    ]
    for number, place in enumerate(entry.places):
        program = place.operator.program()
        cpu, read = Cpu(_with_half_constants(program) if half else program), entry.operands(number)
        for values, rng in zip(runs, rngs, strict=True):
            given = cpu(SIGNATURE, {tensor_name(i): values[i] for i in read})
            for index in place.operator.outputs:
                array = given[tensor_name(index)]
                values[index] = _around(array, rng) if half else _drawn(array, [values[i] for i in read], rng)
    return [{name: values[index] for index, name in entry.outputs.items()} for values in runs]


def _around(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round to one of the two float16 numbers that each lies between.

    What is one stays, and what is too large for float16.

    That an engine has another number in its place is no rounding.
    """
    if array.dtype != np.float32:
        return array
    fits = np.abs(array) <= LARGEST
    inside = np.where(fits, array, np.float32(0))
    nearest = inside.astype(np.float16)
    other = np.nextafter(nearest, np.where(inside > nearest, LARGEST, -LARGEST).astype(np.float16))
    stays = (nearest == inside) | (rng.random(array.shape) < 0.5)
    return np.where(fits, np.where(stays, nearest, other), array)


def _with_half_constants(program: bytes) -> bytes:
    """Return a file whose constants are those of float16, but for numbers that it does not have, large or small."""
    data = bytearray(program)
    model = generated.Model.GetRootAs(data, 0)
    graphs = (model.Subgraphs(i) for i in range(model.SubgraphsLength()))
    tensors = (graph.Tensors(i) for graph in graphs for i in range(graph.TensorsLength()))
    for number in {t.Buffer() for t in tensors if t.Type() == generated.TensorType.FLOAT32}:
        if (stored := schema.buffer_data(data, model.Buffers(number))).size:
            array = stored.view(np.float32)  # of the file itself
            rounded = np.clip(array, -LARGEST, LARGEST).astype(np.float16)
            array[:] = np.where((np.abs(array) <= LARGEST) & (rounded != 0), rounded, array)
    return bytes(data)


def _drawn(array: np.ndarray, operands: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Other last bits for what was rounded: not for whole numbers, nor for what was only moved, chosen or negated.

    What a maximum came from must stay equal to it.
    """
    if array.dtype != np.float32:
        return array
    kept = array == np.rint(array)
    for operand in operands:
        if operand.dtype == np.float32:
            kept |= np.isin(np.abs(array), np.abs(operand))
    return np.where(kept, array, neighbours(array, rng))
