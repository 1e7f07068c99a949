"""Winograd convolution for frozen 3x3 filters: fewer products, in exchange for sums before and after.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (CVPR 2016), by Cook and Toom's construction:
polynomials are multiplied by their values at points. A tile of pixels d and the filter g give the results
A ((G g G') * (B d B')) A'. The sums B d B' of each channel are depthwise convolutions, and for each place of a tile all
tiles meet one matrix. G g G' are depthwise convolutions too, of the filter as an image, at each run: for many pixels
they cost next to nothing, and a transformed filter takes up to four times the bytes of the filter, which the file has
anyway. F(2x2, 3x3) takes 16 products for four
numbers of the result, where the filter as it is takes 36; F(4x4, 3x3) takes 36 for sixteen, where it takes 144.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.forms import PER_STORED, Form
from converter.backend.lowering.rules.filters import Filter
from converter.backend.lowering.rules.windows import crop, pad_explicitly, zero_bias
from converter.ir import Shape, Value, ops

#: Bytes that a runtime holds for an operator (LiteRT 2.3, XNNPACK: 12 MB for 3300 of these and their tables).
_PER_OPERATOR = 3700
#: Multiply-accumulates in the time of a byte that lies beyond the caches, at least: tables of instructions do not tell.
_PER_FAR = 1.5


@dataclass(frozen=True)
class Tiles:
    """How tiles of the result are computed, along one axis.

    Attributes:
        powers: the points are 0, both signs of each of these times `unit`, and infinity.
        unit: what is between 1/2 and 1 lets rounding grow less (Barabasz et al., Error Analysis and Improving the
            Accuracy of Winograd Convolution, 2020); the results come out divided by its powers.
    """

    powers: tuple[int, ...]
    unit: float

    @property
    def results(self) -> int:
        """Numbers of the result in a tile."""
        return 2 * len(self.powers)

    @property
    def places(self) -> int:
        """Number of input elements that a tile reads, and of products that it takes."""
        return self.results + 2

    def added(self) -> int:
        """Operators of the results of one line of products: sums of two."""
        return 2 * len(self.powers) + self.results * (len(self.powers) - 1) + 2

    def multiplied(self) -> int:
        """And multiplications of one."""
        return (self.results - 1) * (len(self.powers) - 1)

    def _values(self, terms: int) -> np.ndarray:
        """[places, terms]: the powers of each point, and of infinity the last."""
        points = [0.0, *(sign * power * self.unit for power in self.powers for sign in (1, -1))]
        return np.vstack([np.vander(points, terms, increasing=True), np.eye(1, terms, terms - 1)])

    def of_filter(self) -> np.ndarray:
        """G [places, 3]; what meets infinity is added to results that were divided, so it is, too."""
        values = self._values(3)
        values[-1] /= self.unit ** (self.results - 1)
        return values

    def of_input(self) -> np.ndarray:
        """B [places, places]: the numbers of the input times these are what a place of the filter meets."""
        values = np.linalg.inv(self._values(self.places)).T
        return np.where(np.abs(values) < 1e-9, 0, values)


@dataclass(frozen=True)
class Way:
    """Tiles of rows, and of columns in each; None where three columns meet the filter as they are."""

    down: Tiles
    across: Tiles | None


TWO, FOUR = Tiles((1,), 1.0), Tiles((1, 2), 0.5**0.5)
WAYS = {"winograd 2x2": Way(TWO, TWO), "winograd 4x4": Way(FOUR, FOUR), "winograd 4x1": Way(FOUR, None)}


def winograd(c: Lowering, op: ops.Conv2D, x: Value, w: Filter) -> list[Form]:
    """The forms, where the filter is known now, 3x3, and meets every pixel; none elsewhere, nor for microcontrollers.

    Engines of accelerators choose their own algorithm for a CONV_2D, so they are for CPUs alone.
    """
    known = c.array(w.w) is not None and c.target.is_cpu and not c.target.is_micro
    if not known or w.kernel != (3, 3) or {op.strides, op.dilation} != {(1, 1)}:
        return []
    size = op.output_size(x.shape[1:3], w.kernel)

    def form(name: str, way: Way) -> Form:
        return Form(name, _cost(c, x, w, size, way), lambda: _emit(c, op, x, w, size, way), beside=True)

    return [form(*each) for each in WAYS.items()]


def _emit(c: Lowering, op: ops.Conv2D, x: Value, w: Filter, size: Shape, way: Way) -> Value:
    x = pad_explicitly(c, x, _each(min, op.padding))  # what a negative padding leaves out is cut off first
    op = replace(op, padding=_each(max, op.padding))
    down, (top, _) = way.down, op.padding[0]
    height = -(-size[0] // down.results)
    rows = [_summed(c, x, down, a, 1, top, height) for a in range(down.places)]
    if way.across is None:
        lines, width = _by_rows(c, op, rows, w, down), size[1]
    else:
        width = -(-size[1] // way.across.results) * way.across.results
        lines = _by_tiles(c, op, rows, w, down, way.across, width)
    outputs = w.outputs
    joined = c(tfl.Concatenation(2), *(c.reshape(line, (x.shape[0], height, width * outputs)) for line in lines))
    whole = c.reshape(joined, (x.shape[0], down.results * height, width, outputs))
    return crop(c, whole, ((0, 0), (0, 0)), size)


def _each(bound: Callable[[int, int], int], padding: ops.Padding) -> ops.Padding:
    (top, bottom), (left, right) = padding
    return (bound(top, 0), bound(bottom, 0)), (bound(left, 0), bound(right, 0))


def _by_rows(c: Lowering, op: ops.Conv2D, rows: list[Value], w: Filter, down: Tiles) -> list[Value]:
    """Each row of the tiles of results, [N, height, width, outputs]."""
    transformed = _of_rows(w, down)
    products = []
    for row, taps in zip(rows, transformed, strict=True):
        padded = pad_explicitly(c, row, ((0, 0), op.padding[1]))
        batch, height, columns, channels = padded.shape
        size = (batch, height, columns - 2, channels)
        beside = c(tfl.Concatenation(3), *(c(tfl.Slice((0, 0, j, 0), size), padded) for j in range(3)))
        products.append(_product(c, beside, w, _as_matrix(c, taps, w)))
    return [_times(c, y, down.unit**i) for i, y in enumerate(_results(c, down, products))]


def _by_tiles(
    c: Lowering, op: ops.Conv2D, rows: list[Value], w: Filter, down: Tiles, across: Tiles, width: int
) -> list[Value]:
    """Each row of the tiles of results, [N, height, tiles across, results across * outputs]."""
    left, transformed = op.padding[1][0], _of_rows(w, down)
    columns = []
    for b in range(across.places):
        products = []
        for row, taps in zip(rows, transformed, strict=True):
            contracted = _summed(c, row, across, b, 2, left, width // across.results)
            matrix = c.reshape(_taps_summed(w, taps, across, b, 2), (w.shape[0], w.shape[3]))
            products.append(_product(c, contracted, w, matrix))
        columns.append(_results(c, down, products))
    lines = []
    for i, line in enumerate(zip(*columns, strict=True)):
        results = enumerate(_results(c, across, line))
        lines.append(c(tfl.Concatenation(3), *(_times(c, y, down.unit**i * across.unit**j) for j, y in results)))
    return lines


def _of_rows(w: Filter, down: Tiles) -> list[Value]:
    """What the rows of the filter are at each place down a tile, [O, 1, 3, I]."""
    copy = w.c(tfl.SliceWeight((0, 0, 0, 0), w.shape), w.w)
    return [_taps_summed(w, copy, down, a, 1) for a in range(down.places)]


def _taps_summed(w: Filter, taps: Value, tiles: Tiles, place: int, axis: int) -> Value:
    """The filter's three taps along rows (axis 1) or columns (2) at a place of a tile, where there is one then."""
    numbers, channels = tiles.of_filter()[place], w.shape[3]
    numbers = numbers[::-1] if w.transposed else numbers
    kernel = (3, 1) if axis == 1 else (1, 3)
    of_each = np.repeat(numbers.astype(np.float32), channels).reshape(1, *kernel, channels)
    return w.c(tfl.DepthwiseConv2D(padding="VALID"), taps, w.c.constant(of_each), zero_bias(w.c, channels))


def _as_matrix(c: Lowering, taps: Value, w: Filter) -> Value:
    """Three taps side by side, [O, 1, 3, I], as a product reads them: [outputs, 3 * inputs], or the other way round."""
    outputs, inputs = w.shape[0], w.shape[3]
    if not w.transposed:
        return c.reshape(taps, (outputs, 3 * inputs))
    each = [c.reshape(c(tfl.Slice((0, 0, j, 0), (outputs, 1, 1, inputs)), taps), (outputs, inputs)) for j in (2, 1, 0)]
    return c(tfl.Concatenation(0), *each)


def _product(c: Lowering, x: Value, w: Filter, matrix: Value) -> Value:
    """Each pixel of [N, height, width, K] by a matrix that is made at each run."""
    flat = c.reshape(x, (prod(x.shape[:3]), x.shape[3]))
    return c.reshape(c(tfl.BatchMatmul(False, not w.transposed), flat, matrix), (*x.shape[:3], w.outputs))


def _summed(c: Lowering, x: Value, tiles: Tiles, place: int, axis: int, padding: int, count: int) -> Value:
    """What a place of each of `count` tiles reads: along rows (axis 1) or columns (2), which begin after a padding."""
    numbers = tiles.of_input()[place]
    (contracted,) = np.nonzero(numbers)
    first = min(int(contracted[0]), padding)
    separate = int(contracted[1] - contracted[0]) if first == contracted[0] else 1
    numbers = numbers[first : contracted[-1] + 1 : separate]
    after = (count - 1) * tiles.results + int(contracted[-1]) + 1 - padding - x.shape[axis]
    around = ((padding - first, max(after, 0)), (0, 0))
    strides, dilation, kernel = (tiles.results, 1), (separate, 1), (len(numbers), 1)
    if axis == 2:
        around, strides, dilation, kernel = around[::-1], strides[::-1], dilation[::-1], kernel[::-1]
    w = np.repeat(numbers.astype(np.float32), x.shape[3]).reshape(1, *kernel, x.shape[3])
    # A padding for each: XNNPACK pads as it convolves what only one operator reads.
    padded = pad_explicitly(c, x, around)
    return c(tfl.DepthwiseConv2D(strides, "VALID", dilation), padded, c.constant(w), zero_bias(c, x.shape[3]))


def _results(c: Lowering, tiles: Tiles, m: Sequence[Value]) -> list[Value]:
    """A times the products of the places: at 0, of both signs of each power, and at infinity."""
    pairs = [(m[1 + 2 * i], m[2 + 2 * i]) for i in range(len(tiles.powers))]
    even, odd = ([c(kind, *pair) for pair in pairs] for kind in (tfl.Add(), tfl.Sub()))
    results = []
    for i in range(tiles.results):
        terms = [_times(c, y, power**i) for power, y in zip(tiles.powers, odd if i % 2 else even, strict=True)]
        terms = [*([m[0]] if i == 0 else []), *terms, *([m[-1]] if i == tiles.results - 1 else [])]
        results.append(reduce(lambda y, term: c(tfl.Add(), y, term), terms))
    return results


def _times(c: Lowering, y: Value, number: float) -> Value:
    return y if number == 1 else c(tfl.Mul(), y, c.constant(np.float32(number)))


def _cost(c: Lowering, x: Value, w: Filter, size: Shape, way: Way) -> float:
    """Of the filters' sums, the sums by filters, the products and the sums of two, and of what is held for them."""
    target, channels, outputs = c.target, w.inputs, w.outputs
    down, across = way.down, way.across
    height = -(-size[0] // down.results)
    wide = x.shape[0] * height * x.shape[2]
    places, contracted, results, columns = 1, 3, 1, x.shape[0] * height * size[1]
    if across is not None:
        places, contracted, results = across.places, 1, across.results
        columns = x.shape[0] * height * -(-size[1] // results)
    # Sums of rows, and of columns of the result.
    touched = 4 * (down.places * wide * channels + down.results * places * columns * outputs)
    operators = 0

    def moved(times: int, numbers: int) -> float:
        nonlocal operators
        operators += times
        far = 4 * numbers * _PER_FAR * target.per_mac["conv.constant"] if touched > target.shared_cache_bytes else 0.0
        return times * max(target.moved("delegated", 4 * numbers, touched), far)

    def sums(times: int, numbers: int, of: Tiles) -> float:
        far = moved(2 * times, (of.results + 1) * numbers) / 2  # each with a padding, for nothing
        return max(far, times * target.macs("depthwise.constant", 4 * numbers))

    cost = sums(down.places, wide * channels, down)
    if across is not None:
        cost += sums(down.places * across.places, columns * channels, across)
    cost += down.places * places * target.product(columns, contracted * channels, outputs)
    if across is None:  # a row's three taps side by side
        cost += moved(2 * down.places, 2 * contracted * columns * channels)
    made = 3 * channels * outputs
    cost += target.moved("delegated", 2 * 3 * 4 * made) + down.places * target.macs("depthwise.constant", 3 * made)
    cost += down.places * places * target.macs("depthwise.constant", made)
    for tiles, times in ((down, places), (across, down.results)):
        if tiles is not None:
            cost += moved(times * tiles.added(), 3 * columns * outputs) + moved(
                times * tiles.multiplied(), 2 * columns * outputs
            )
    if down.unit != 1:
        cost += moved(down.results * results - 1, 2 * columns * outputs)
    joined = 2 * down.results * results * columns * outputs
    cost += moved(1, joined) + (moved(down.results, joined // down.results) if across is not None else 0)
    return cost + PER_STORED * target.per_mac["conv.constant"] * _PER_OPERATOR * (operators + 3 * down.places * places)
