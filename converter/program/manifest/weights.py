"""The manifest's records of trained weights: pieces in the state, scales of integers, frozen parts, chosen channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

#: Types of what is stored.
StoredDtype = Literal["float32", "int32", "bool", "int8"]


@dataclass(frozen=True)
class Scales:
    """What the integers of a trained weight are multiplied by: a number for each index of an axis, or one for all.

    Attributes:
        tensor: of the state, float32; n numbers in whatever shape.
        axis: of the state tensor of the integers.
    """

    tensor: str
    axis: int

    def real(self, integers: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the numbers that integers stand for, float32."""
        shape = [1] * integers.ndim
        shape[self.axis] = scales.size
        return integers.astype(np.float32) * scales.reshape(shape)


@dataclass(frozen=True)
class Piece:
    """Where a state tensor lies in the parameter that the user knows; see `converter.ir.view`.

    Attributes:
        scales: of a tensor in int8; None where it holds the numbers themselves.
    """

    tensor: str
    view: tuple[Any, ...]
    scales: Scales | None = None

    def real(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers that the tensor of a state stands for."""
        stored = state[self.tensor]
        return stored if self.scales is None else self.scales.real(stored, state[self.scales.tensor])


@dataclass(frozen=True)
class FrozenPart:
    """Where the frozen part of a weight lies in it, and the metadata entry that holds it, of a shape of its own."""

    entry: str
    shape: tuple[int, ...]
    view: tuple[Any, ...]


@dataclass(frozen=True)
class ParameterSpec:
    """A trained weight by the model's own name, in the model's own layout.

    Attributes:
        frozen: the part of it that does not train; None when the pieces cover all of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: StoredDtype
    pieces: tuple[Piece, ...]
    frozen: FrozenPart | None


@dataclass(frozen=True)
class ChosenChannels:
    """A weight that no step changes, with what is added to some of its input channels.

    Attributes:
        weight: its name.
        channels: how many it has.
        indices: the state tensor that says which of them, int32, each once.
        change: the parameter that is added to these; zero at first.
        product: where the weight is state, a parameter, to which a session adds the change before it draws other
            channels: the view from its own layout to [..., channels, outputs]. None where it is a constant of the file.
    """

    weight: str
    channels: int
    indices: str
    change: str
    product: tuple[Any, ...] | None = None

    def is_good(self, indices: np.ndarray) -> bool:
        """Return whether these are different channels that there are: kernels do not look."""
        found = np.unique(indices)
        return found.size == indices.size and found[0] >= 0 and found[-1] < self.channels
