"""Quantization scales: from ranges and weights to the integers that represent them, as the kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from converter.ir import INT4, INT8, INT32, Quantization

#: Integers of a weight are symmetric around 0, as the kernels want it: -128 is left out.
WEIGHT_STEPS = 127
#: The same of int4.
INT4_STEPS = 7
#: Elements of a matrix that are rounded at once.
_AT_ONCE = 1 << 22
#: A bias must fit into int32 with room for the products that are added to it.
LARGEST_BIAS = 2.0**30
#: XNNPACK multiplies an int32 sum with a factor of at least 2^-32 to make the int8 result.
SMALLEST_FACTOR = 2.0**-31
#: And of less than 2^8, in a leaky ReLU 2^7: finer steps of the result would hold nothing, as the sums have none.
LARGEST_FACTOR = 2.0**6
#: Where nothing is known of a tensor but that it is 0.
SMALLEST_RANGE = 1e-6


class Range(NamedTuple):
    """Smallest and largest number of a tensor."""

    low: float
    high: float

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    def widened(self, width: float) -> Range:
        """Return this range, around it what is missing to a width."""
        return self if self.high - self.low >= width else Range(self.low, self.low + width)


def of_range(low: float, high: float) -> Quantization:
    """int8 for activations from `low` to `high`; 0 is always exact, as padding and relu want it."""
    low, high = min(low, 0.0), max(high, 0.0, SMALLEST_RANGE + min(low, 0.0))
    scale = float(np.float32((high - low) / 255))
    return Quantization((scale,), int(np.clip(round(-128 - low / scale), -128, 127)))


def weight_scales(weight: np.ndarray, axis: int, least: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the scales of a weight, one for each index of `axis`, none below `least`; float32 [n]."""
    largest = np.abs(weight).max(tuple(i for i in range(weight.ndim) if i != axis))
    scales = np.maximum(largest / WEIGHT_STEPS, least)
    return np.where(scales > 0, scales, scales.max(initial=0) or 1.0).astype(np.float32)


def of_weight(weight: np.ndarray, axis: int, least: np.ndarray | float = 0.0) -> tuple[Quantization, np.ndarray]:
    """int8 for a weight, one scale for each index of `axis`, none below `least`."""
    quantization = Quantization(tuple(weight_scales(weight, axis, least).tolist()), 0, axis)
    return quantization, np.clip(quantization.stored(weight), -WEIGHT_STEPS, WEIGHT_STEPS).astype(INT8)


def least_weight_scales(bias: np.ndarray, x: Quantization, y: Quantization) -> np.ndarray:
    """Weight scales below which the bias overflows, or the kernels cannot make the result of the sums."""
    return np.maximum(np.abs(bias) / (x.scale * LARGEST_BIAS), SMALLEST_FACTOR * y.scale / x.scale)


def of_bias(bias: np.ndarray, x: Quantization, w: Quantization) -> tuple[Quantization, np.ndarray]:
    """int32 for a bias: in steps of the products that it is added to."""
    quantization = Quantization(tuple(float(np.float32(x.scale) * np.float32(s)) for s in w.scales))
    return quantization, quantization.stored(bias, INT32)


def int4_scales(largest: np.ndarray) -> np.ndarray:
    """Return the scales of rows in int4 by the largest magnitude of each, float32 [A]; of nothing but zeros it is 1."""
    scales = largest / WEIGHT_STEPS * np.float32(WEIGHT_STEPS / INT4_STEPS)
    return np.where(largest > 0, scales, np.float32(1))


def int4_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix [A, B] as the nearest int4, symmetric around 0, and the scale of each row, float32 [A].

    A part of the matrix at a time is float32.
    """
    rows, columns = matrix.shape
    integers, scales = np.empty(matrix.shape, INT4), int4_scales(np.abs(matrix).max(1, initial=0))
    for begin in range(0, rows, step := max(1, _AT_ONCE // max(columns, 1))):
        part = slice(begin, begin + step)
        integers[part] = nearest_int4(matrix[part], scales[part, None])
    return integers, scales


def int4_blocks(matrix: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix [A, B] as the nearest int4, and the scales of its blocks, float16 [A, B / block].

    A part of the matrix at a time is float32.

    Raises:
        OverflowError: a scale is larger than float16 has.
    """
    rows, columns = matrix.shape
    integers, scales = np.empty(matrix.shape, INT4), np.empty((rows, columns // block), np.float16)
    for begin in range(0, rows, step := max(1, _AT_ONCE // max(columns, 1))):
        part = slice(begin, begin + step)
        blocks = np.asarray(matrix[part], np.float32).reshape(-1, columns // block, block)
        of = _float16_above(np.abs(blocks).max(-1) / np.float32(INT4_STEPS))
        scales[part] = np.where(of > 0, of, np.float16(1))
        integers[part] = nearest_int4(blocks, scales[part, :, None].astype(np.float32)).reshape(-1, columns)
    return integers, scales


def _float16_above(numbers: np.ndarray) -> np.ndarray:
    """Return the least float16 that is no less than each number."""
    with np.errstate(over="ignore"):
        near = numbers.astype(np.float16)
        above = np.where(near < numbers, np.nextafter(near, np.float16(np.inf)), near)
    if not np.isfinite(above).all():
        raise OverflowError(f"{numbers.max():.3g} is larger than float16 has")
    return above


def nearest_int4(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the integers of four bits nearest to numbers in steps of scales."""
    return np.clip(np.rint(numbers / scales), -INT4_STEPS, INT4_STEPS).astype(INT4)
