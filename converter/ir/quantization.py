"""Affine quantization of TFLite: how integers represent real numbers (Jacob et al., arXiv 1712.05877)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

INT8 = np.dtype(np.int8)


@dataclass(frozen=True)
class Quantization:
    """real = scale * (stored - zero_point).

    Attributes:
        scales: one for the whole tensor, or one for each index of `axis`.
        zero_point: what stands for 0.
        axis: along which the scales differ.
    """

    scales: tuple[float, ...]
    zero_point: int = 0
    axis: int = 0

    @property
    def per_channel(self) -> bool:
        """Whether the scales differ along an axis."""
        return len(self.scales) > 1

    @property
    def scale(self) -> float:
        """The only scale."""
        (scale,) = self.scales
        return scale

    def steps(self, rank: int) -> np.ndarray:
        """Return the scales, shaped to be multiplied with a tensor of this rank."""
        shape = [1] * rank
        if self.per_channel:
            shape[self.axis] = len(self.scales)
        return np.array(self.scales, np.float64).reshape(shape)

    def real(self, stored: np.ndarray) -> np.ndarray:
        """Return the numbers that a stored tensor stands for, in double precision."""
        return self.steps(stored.ndim) * (stored.astype(np.float64) - self.zero_point)

    def stored(self, real: np.ndarray, dtype: np.dtype = INT8) -> np.ndarray:
        """Return the nearest integers of an element type; what is out of its range is cut off."""
        limits = np.iinfo(dtype)
        nearest = np.rint(real / self.steps(real.ndim)) + self.zero_point
        return np.clip(nearest, limits.min, limits.max).astype(dtype)

    def __str__(self) -> str:
        if not self.per_channel:
            return f"{self.scale:.9g}*(q{-self.zero_point:+d})"
        digest = hashlib.sha256(np.array(self.scales).tobytes()).hexdigest()
        return f"{len(self.scales)} scales {digest[:12]} on axis {self.axis}"

    __repr__ = __str__


#: Integers that stand for themselves.
UNSCALED = Quantization((1.0,))


@dataclass(frozen=True, eq=False)
class Integers:
    """A trained weight in int8: real = scale * integer, one scale for each index of an axis, or one for all.

    Attributes:
        scales: float32 [n], above 0; the state holds them beside the integers.
        axis: of the stored weight, along which they differ.
        known: whether the numbers of the weight are; where it is only planned they are not.
    """

    scales: np.ndarray
    axis: int
    known: bool = True

    def against(self, rank: int) -> tuple[int, ...]:
        """Return the shape in which the scales multiply a weight of this rank."""
        shape = [1] * rank
        shape[self.axis] = len(self.scales)
        return tuple(shape)

    def of(self, real: np.ndarray) -> np.ndarray:
        """Return the nearest integers of a stored weight."""
        if not self.known:
            return np.broadcast_to(np.int8(1), real.shape)
        return UNSCALED.stored(real / self.scales.reshape(self.against(real.ndim)))
