"""Filters as matrices, one for each position, whichever way round it is multiplied."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.rules.tiles import joined
from converter.ir import Shape, Value, described, fingerprint, is_described


class Filter:
    """A filter [O, kh, kw, I]; `transposed` as the cotangent meets it: rows and columns reversed, channels exchanged.

    One known at run time may be read in another `shape` of this kind. One `as_stored` is read as the file has it for
    the forward pass: what a product wants of it is copied at each run, as of one that trains.
    """

    def __init__(
        self, c: Lowering, w: Value, transposed: bool = False, shape: Shape | None = None, as_stored: bool = False
    ) -> None:
        self.c, self.w, self.transposed, self.shape = c, w, transposed, w.shape if shape is None else shape
        self.kernel: tuple[int, int] = (self.shape[1], self.shape[2])
        self.as_stored = as_stored
        self.constant = c.is_constant(w) and not as_stored
        channels = self.shape[3], self.shape[0]
        self.inputs, self.outputs = channels[::-1] if transposed else channels

    @property
    def kind(self) -> str:
        """As the names of forms have it."""
        return "constant" if self.constant else "runtime"

    def array(self) -> np.ndarray | None:
        """The filter as CONV_2D reads it, where it is known now."""
        array = self.c.array(self.w)
        if array is None or not self.transposed:
            return array
        flipped = np.transpose(array[:, ::-1, ::-1], (3, 1, 2, 0))
        return described(flipped.shape, f"transposed {fingerprint(array)}") if is_described(array) else flipped

    def whole(self) -> Value:
        """The filter as CONV_2D reads it."""
        if not self.transposed:
            return self.w
        array = self.array()
        if array is not None:
            return self.c.constant(array, name=self.w.name)
        flipped = self.w
        if self.kernel != (1, 1):
            flipped = self.c(tfl.ReverseV2((2,)), self.c(tfl.ReverseV2((1,)), self.w))
        return self.c.transpose(flipped, (3, 1, 2, 0))

    def whole_cost(self) -> float:
        """What that costs at run time."""
        if self.constant or not self.transposed:
            return 0.0
        return self.c.target.moved("transpose", 2 * self.w.type.nbytes)

    def tap(self, i: int, j: int) -> Value:
        """The matrix of position (i, j), for `product`."""
        if self.transposed:
            i, j = self.kernel[0] - 1 - i, self.kernel[1] - 1 - j
        array = self.c.array(self.w)
        if array is not None and not self.as_stored:
            return self._fixed(array[:, i, j])
        size = (self.shape[0], 1, 1, self.shape[3])
        part = self.w
        if size != self.shape:
            slice_ = tfl.SliceWeight if self.as_stored else tfl.Slice
            part = self.c(slice_((0, i, j, 0), size), self.c.reshape(self.w, self.shape))
        return self.c.reshape(part, (size[0], size[3]))

    def rows(self) -> list[Value]:
        """The matrices of the rows of a filter known at run time, for `product` with what its columns meet."""
        kh, kw = self.kernel
        if self.transposed:
            return [joined(self.c, [self.tap(i, j) for j in range(kw)]) for i in range(kh)]
        w, size = self.c.reshape(self.w, self.shape), (self.outputs, 1, kw, self.inputs)
        lines = [w] if kh == 1 else [self.c(tfl.Slice((0, i, 0, 0), size), w) for i in range(kh)]
        return [self.c.reshape(line, (self.outputs, kw * self.inputs)) for line in lines]

    def product(self, x: Value, matrix: Value) -> Value:
        """[rows, inputs] by a matrix of this filter: [rows, outputs]."""
        if self.constant:
            return self.c(tfl.FullyConnected(), x, matrix)
        return self.c(tfl.BatchMatmul(False, not self.transposed), x, matrix)

    def product_cost(self, rows: int, matrices: int, times: int = 1, taps: int = 1) -> float:
        """What that costs, `times` over with one matrix of so many `taps`, by each of `matrices` in turn."""
        touched, depth = 4 * matrices * taps * self.inputs * self.outputs, taps * self.inputs
        constant = self.constant or (self.as_stored and self.kernel == (1, 1))  # of one tap no part is copied
        return self.c.target.product(rows, depth, self.outputs, constant, touched, times)

    def _fixed(self, matrix: np.ndarray) -> Value:
        """A constant matrix [outputs, inputs] as FULLY_CONNECTED reads it."""
        return self.c.constant(np.ascontiguousarray(matrix.T if self.transposed else matrix), name=self.w.name)
