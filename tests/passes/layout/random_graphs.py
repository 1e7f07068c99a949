"""Random graphs of tensors that lie in all ways: convolutions, products and others between transposes and reshapes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from converter.ir import FLOAT32, Builder, Graph, Parameter, Shape, TensorType, Value, ops

#: No tensor becomes larger.
LARGEST = 3000
#: Pictures with channels first and last, and any other order.
PERMUTATIONS = [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (0, 2, 1, 3), (3, 1, 2, 0), (1, 0, 2, 3)]


class RandomGraph:
    """Draws a graph: each step makes a value of earlier ones."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.values = [self.b.input("x", TensorType(self._picture()))]

    def draw(self, steps: int) -> Graph:
        """Return a graph of so many steps; what nobody reads is an output."""
        kinds: list[Callable[[Value], Value | None]] = [
            *([self._convolved] * 4),
            *([self._in_channels] * 3),
            *([self._turned] * 3),
            *([self._joined] * 2),
            *(self._unary, self._pooled, self._shaped, self._cut, self._reduced, self._row, self._product, self._pair),
        ]
        while steps:
            recent = [v for v in self.values if v.shape][-4:]
            made = kinds[self.rng.integers(len(kinds))](recent[self.rng.integers(len(recent))])
            if made is not None and 0 < made.type.size <= LARGEST:
                self.values.append(made)
                steps -= 1
        read = {v for node in self.b.graph.nodes for v in node.inputs}
        last = [v for v in self.values if v not in read]
        self.b.graph.outputs = {f"y{i}": v for i, v in enumerate(last)}
        return self.b.graph

    def _picture(self) -> Shape:
        return tuple(int(d) for d in self.rng.choice([1, 2, 3, 4, 6], 4, p=[0.1, 0.25, 0.2, 0.25, 0.2]))

    def weight(self, *shape: int) -> Value:
        """A new parameter."""
        name = f"w{len(self.b.graph.parameters)}"
        value = Value(TensorType(shape, FLOAT32), name)
        numbers = self.rng.standard_normal(shape) / max(1, prod(shape[:-1])) ** 0.5
        self.b.graph.parameters[value] = Parameter(name, numbers.astype(np.float32))
        return value

    def _axis(self, x: Value) -> int:
        return int(self.rng.integers(len(x.shape)))

    def _turned(self, x: Value) -> Value:
        if len(x.shape) == 4 and self.rng.integers(3):
            return self.b.transpose(x, PERMUTATIONS[self.rng.integers(len(PERMUTATIONS))])
        return self.b.transpose(x, tuple(int(i) for i in self.rng.permutation(len(x.shape))))

    def _shaped(self, x: Value) -> Value:
        """Two axes joined, one split, one of one element more, or a single one."""
        shape, kind = list(x.shape), self.rng.integers(4)
        if kind == 0 and len(shape) > 1:
            i = int(self.rng.integers(len(shape) - 1))
            shape[i : i + 2] = [shape[i] * shape[i + 1]]
        elif kind == 1 and len(shape) < 6:
            i = self._axis(x)
            parts = [d for d in (2, 3) if shape[i] % d == 0]
            if parts:
                shape[i : i + 1] = [shape[i] // parts[0], parts[0]]
        elif kind == 2 and len(shape) < 5:
            shape.insert(self._axis(x), 1)
        elif self.rng.integers(3) == 0:
            shape = [prod(shape)]
        return self.b.reshape(x, tuple(shape))

    def _as_picture(self, x: Value, work: Callable[[Value], Value]) -> Value | None:
        """What works on NHWC, on a value that lies in some other way."""
        if len(x.shape) != 4:
            return None
        perm = PERMUTATIONS[self.rng.integers(2)] if self.rng.integers(4) else tuple(range(4))
        y = work(self.b.transpose(x, perm))
        return self.b.transpose(y, tuple(int(i) for i in np.argsort(perm)))

    def _convolved(self, x: Value) -> Value | None:
        def work(x: Value) -> Value:
            size = tuple(int(min(n, k)) for n, k in zip(x.shape[1:3], self.rng.integers(1, 4, 2), strict=True))
            if self.rng.integers(3) == 0:
                return self.b(ops.DepthwiseConv2D(), x, self.weight(1, *size, x.shape[3]))
            w = self.weight(*size, x.shape[3], int(self.rng.choice([2, 3, 4, 6])))
            return self.b(ops.Conv2D(), x, self.b.transpose(w, (3, 0, 1, 2)))

        return self._as_picture(x, work)

    def _pooled(self, x: Value) -> Value | None:
        def work(x: Value) -> Value:
            size = (min(2, x.shape[1]), min(2, x.shape[2]))
            return self.b((ops.MaxPool2D, ops.SumPool2D)[self.rng.integers(2)](size, size), x)

        return self._as_picture(x, work)

    def _in_channels(self, x: Value) -> Value | None:
        """A number for each element of some axes."""
        shape = tuple(d if self.rng.integers(2) else 1 for d in x.shape)
        w = self.weight(*shape[int(self.rng.integers(len(shape) + 1)) :])
        operands = (x, w) if self.rng.integers(4) else (w, x)
        return self.b((ops.Mul(), ops.Add(), ops.Sub())[self.rng.integers(3)], *operands)

    def _joined(self, x: Value) -> Value | None:
        """With an earlier value of that shape: a sum, or one behind the other."""
        same = [v for v in self.values if v.shape == x.shape and v is not x]
        other = same[self.rng.integers(len(same))] if same else self.b(ops.Tanh(), x)
        if self.rng.integers(2):
            return self.b((ops.Add(), ops.Mul())[self.rng.integers(2)], x, other)
        return self.b(ops.Concat(self._axis(x)), x, other)

    def _unary(self, x: Value) -> Value:
        return self.b((ops.Tanh(), ops.Gelu(), ops.Logistic(), ops.Silu())[self.rng.integers(4)], x)

    def _cut(self, x: Value) -> Value:
        """Slice, Pad, Reverse or CumSum."""
        axis, rank, kind = self._axis(x), len(x.shape), self.rng.integers(4)
        if kind == 0:
            begin = int(self.rng.integers(x.shape[axis]))
            size = tuple(d - begin if i == axis else d for i, d in enumerate(x.shape))
            return self.b(ops.Slice(tuple(begin * (i == axis) for i in range(rank)), size), x)
        if kind == 1:
            return self.b(ops.Pad(tuple((1, 2) if i == axis else (0, 0) for i in range(rank))), x)
        return self.b(ops.Reverse((axis,)) if kind == 2 else ops.CumSum(axis), x)

    def _reduced(self, x: Value) -> Value:
        axes = tuple(int(a) for a in self.rng.permutation(len(x.shape))[: self.rng.integers(1, len(x.shape) + 1)])
        return self.b((ops.Mean, ops.Sum)[self.rng.integers(2)](axes, bool(self.rng.integers(2))), x)

    def _row(self, x: Value) -> Value:
        return self.b((ops.Softmax(), ops.LayerNorm(0.1), ops.RMSNorm(0.1), ops.LogSumExp())[self.rng.integers(4)], x)

    def _product(self, x: Value) -> Value | None:
        """With a matrix."""
        if len(x.shape) < 2:
            return None
        units = int(self.rng.integers(1, 5))
        adj = bool(self.rng.integers(2))
        shape = (units, x.shape[-1]) if adj else (x.shape[-1], units)
        return self.b(ops.MatMul(adj_y=adj), x, self.weight(*shape))

    def _pair(self, x: Value) -> Value | None:
        """A stack of matrices with itself."""
        if len(x.shape) < 3:
            return None
        adj = bool(self.rng.integers(2))
        return self.b(ops.MatMul(adj_x=adj, adj_y=not adj), x, self.b(ops.Tanh(), x))
