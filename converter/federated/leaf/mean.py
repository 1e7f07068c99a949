"""Weighted mean of what phones answer, of which only the sum is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO

import numpy as np

#: What answers are weighed by.
WEIGHT = "num-examples"
#: Where the sums of figures and weights lie among the arrays of a file.
_FIGURES = "\0figures"


class Mean:
    """Sums in float64: as large as two answers, however many there are.

    Attributes:
        answers: how many were added.
        weight: of all together.
    """

    def __init__(self) -> None:
        self.answers, self.weight = 0, 0.0
        self._arrays: dict[str, np.ndarray] = {}
        self._figures: dict[str, list[float]] = {}  # by name: weighted sum, weight of those that have it

    def add(self, arrays: Mapping[str, np.ndarray], figures: Mapping[str, float]) -> None:
        """Add an answer.

        Args:
            arrays: float32 or float64, of the same names and shapes in all answers.
            figures: `num-examples`, by which arrays and the other figures are weighed.
        """
        weight = float(figures[WEIGHT])
        for name, array in arrays.items():
            weighed = array.astype(np.float64) * weight
            self._arrays[name] = self._arrays[name] + weighed if name in self._arrays else weighed
        for name, figure in figures.items():
            if name != WEIGHT:
                total = self._figures.setdefault(name, [0.0, 0.0])
                total[0] += weight * figure
                total[1] += weight
        self.answers += 1
        self.weight += weight

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the means, float32; rounded once."""
        return {name: (total / self.weight).astype(np.float32) for name, total in self._arrays.items()}

    def figures(self) -> dict[str, float]:
        """Return the means of figures, and `num-examples` of all together."""
        return {WEIGHT: self.weight, **{name: total / weight for name, (total, weight) in self._figures.items()}}

    def copied(self) -> Mean:
        """Return one to which answers are added without this one; they share arrays, which are never written to."""
        mean = Mean()
        mean.answers, mean.weight = self.answers, self.weight
        mean._arrays = dict(self._arrays)
        mean._figures = {name: list(pair) for name, pair in self._figures.items()}
        return mean

    def packed(self) -> bytes:
        """Return the sums as an `.npz` file."""
        told = json.dumps([self.answers, self.weight, self._figures]).encode()
        return pack({**self._arrays, _FIGURES: np.frombuffer(told, np.uint8)})

    @staticmethod
    def of(packed: bytes | None) -> Mean:
        """Inverse of `packed`; None gives one of no answers."""
        mean = Mean()
        if packed is not None:
            arrays = unpack(packed)
            mean.answers, mean.weight, mean._figures = json.loads(arrays.pop(_FIGURES).tobytes())
            mean._arrays = arrays
        return mean


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays by any names as an `.npz` file."""
    file = BytesIO()
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    np.savez(file, names, *arrays.values())
    return file.getvalue()


def unpack(packed: bytes) -> dict[str, np.ndarray]:
    """Inverse of `pack`."""
    with np.load(BytesIO(packed), allow_pickle=False) as file:
        names = json.loads(file["arr_0"].tobytes())
        return {name: file[f"arr_{place}"] for place, name in enumerate(names, 1)}
