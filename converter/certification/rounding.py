"""How far rounding alone takes the results of a signature, in whatever order an engine adds numbers up.

Stochastic arithmetic (Parker, Monte Carlo Arithmetic, 1997): the signature runs operator by operator, and each number
that an operator has rounded becomes one of its neighbours. A gradient whose true value is zero, as that of a bias
before a normalization, is nothing but what rounding left of sums of large numbers; this says how large those were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from converter.certification.calling import Arrays
from converter.certification.reference import Cpu, neighbours
from converter.layers import Entry
from converter.tflite.parts import SIGNATURE, tensor_name

#: How often last bits are drawn.
DRAWS = 3


def draws(entry: Entry, feed: Mapping[str, np.ndarray]) -> list[Arrays]:
    """The results of a signature, each time with other last bits."""
    runs = [{index: feed[name] for index, name in entry.inputs.items()} for _ in range(DRAWS)]
    rngs = [np.random.default_rng(seed) for seed in range(DRAWS)]
    for number, place in enumerate(entry.places):
        cpu, read = Cpu(place.operator.program()), entry.operands(number)
        for values, rng in zip(runs, rngs, strict=True):
            given = cpu(SIGNATURE, {tensor_name(i): values[i] for i in read})
            for index in place.operator.outputs:
                values[index] = _drawn(given[tensor_name(index)], [values[i] for i in read], rng)
    return [{name: values[index] for index, name in entry.outputs.items()} for values in runs]


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
