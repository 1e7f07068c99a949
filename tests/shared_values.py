"""Random graphs in which values are shared: an operand twice, a value and its transpose, outputs that are operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from converter.ir import Builder, Graph, Parameter, TensorType, Value, ops

#: Matrices are of these sizes, so that values meet each other and their transposes.
SIZES = (3, 4)
NUMBERS = (0.1, -2.0, 5.0)
POINTWISE = (ops.Relu, ops.Tanh, ops.Logistic, ops.Neg, ops.Abs, ops.Softmax)


class SharedValues:
    """Draws a graph of matrices, each step from any values that are there, the same one twice too."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.values: list[Value] = [self.b.input("x", TensorType((3, 4)))]
        self.values.append(self.b.constant(self.array(4, 3)))
        self.values.append(self.b.constant(self.array(4)))
        for i, shape in enumerate(((4, 4), (3, 4))):
            weight = Value(TensorType(shape), f"w{i}")
            self.b.graph.parameters[weight] = Parameter(f"w{i}", self.array(*shape))
            self.values.append(weight)

    def array(self, *shape: int) -> np.ndarray:
        """Numbers of ordinary size, that are no multiples of each other."""
        return self.rng.uniform(-1, 1, shape).astype(np.float32)

    def any(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value, one of the last more likely."""
        found = [v for v in self.values if fits(v)]
        return found[-1 - min(int(self.rng.exponential(2.5)), len(found) - 1)]

    def graph(self, steps: int) -> Graph:
        """The graph, with some of its values as outputs."""
        makers = (self.product, self.product, self.sum, self.factor, self.factor, self.moved, self.moved, self.part)
        makers += (self.joined, self.pointwise, self.reduced, self.divided, self.padded)
        for _ in range(steps):
            made = makers[self.rng.integers(len(makers))]()
            if made is not None and np.prod(made.shape) <= 400:
                self.values.append(made)
        chosen = {self.values[-1], *(self.any() for _ in range(2))}
        outputs = [v for v in self.values if v in chosen]
        self.b.graph.outputs = {f"y{i}": v for i, v in enumerate(outputs)}
        if self.rng.integers(2):  # a step that keeps a weight's new value
            weight = next(iter(self.b.graph.parameters))
            new = [v for v in self.values if v.type == weight.type and v is not weight]
            self.b.graph.updates = {weight: new[-1]} if new else {}
        return self.b.graph

    def product(self) -> Value | None:
        x = self.any(lambda v: len(v.shape) >= 2)
        adj_x, adj_y = (bool(n) for n in self.rng.integers(0, 2, 2))
        depth = x.shape[-2 if adj_x else -1]
        fitting = [
            v for v in self.values if v.shape[:-2] == x.shape[:-2] and len(v.shape) > 1
            and v.shape[-1 if adj_y else -2] == depth
        ]  # fmt: skip
        if not fitting:
            return None
        w = x if x in fitting and self.rng.integers(2) else fitting[-1 - int(self.rng.integers(len(fitting)))]
        return self.b(ops.MatMul(adj_x, adj_y), x, w)

    def _pair(self) -> tuple[Value, Value]:
        x = self.any()
        alike = [v for v in self.values if v.shape == x.shape or v.shape in (x.shape[-1:], (*x.shape[:-1], 1))]
        y = alike[-1 - int(self.rng.integers(len(alike)))]
        return (x, y) if self.rng.integers(2) else (y, x)

    def sum(self) -> Value:
        op = (ops.Add, ops.Sub, ops.Mul, ops.Maximum)[self.rng.integers(4)]
        return self.b(op(), *self._pair())

    def factor(self) -> Value:
        number = NUMBERS[self.rng.integers(len(NUMBERS))]
        x = self.any(lambda v: v not in self.b.graph.constants)
        shape = [(), (1,), (1,) * (len(x.shape) + int(self.rng.integers(2)))][self.rng.integers(3)]
        by = self.b.constant(np.full(shape, number, np.float32))
        op = (ops.Mul, ops.Mul, ops.Div, ops.Add)[self.rng.integers(4)]
        return self.b(op(), x, by)

    def divided(self) -> Value:
        x = self.any()
        return self.b(ops.Div(), x, self.b.constant(self.rng.uniform(1, 2, x.shape[-1:]).astype(np.float32)))

    def moved(self) -> Value:
        x = self.any(lambda v: len(v.shape) > 1)
        if self.rng.integers(2):
            return self.b.transpose(x, tuple(int(i) for i in self.rng.permutation(len(x.shape))))
        shapes = [x.shape[::-1], (1, *x.shape), (x.type.size,), (2, x.type.size // 2), (*x.shape, 1)]
        shape = shapes[self.rng.integers(len(shapes))]
        return self.b(ops.Reshape(shape if np.prod(shape) == x.type.size else x.shape), x)

    def part(self) -> Value:
        x = self.any(lambda v: len(v.shape) > 1)
        axis = int(self.rng.integers(len(x.shape)))
        size = int(self.rng.integers(1, x.shape[axis] + 1))
        begin = int(self.rng.integers(0, x.shape[axis] - size + 1))
        return self.b(
            ops.Slice(
                tuple(begin if i == axis else 0 for i in range(len(x.shape))),
                tuple(size if i == axis else n for i, n in enumerate(x.shape)),
            ),
            x,
        )

    def padded(self) -> Value:
        x = self.any(lambda v: len(v.shape) > 1)
        axis = int(self.rng.integers(len(x.shape)))
        low, high = (int(n) for n in self.rng.integers(0, 3, 2))
        return self.b(ops.Pad(tuple((low, high) if i == axis else (0, 0) for i in range(len(x.shape)))), x)

    def joined(self) -> Value:
        x = self.any(lambda v: len(v.shape) > 1)
        axis = int(self.rng.integers(len(x.shape)))
        alike = [v for v in self.values if v.shape == x.shape]
        others = [alike[-1 - int(self.rng.integers(len(alike)))] for _ in range(int(self.rng.integers(1, 3)))]
        others = [self.b(ops.Neg(), v) if self.rng.integers(3) == 0 else v for v in others]
        return self.b(ops.Concat(axis), x, *others)

    def pointwise(self) -> Value:
        return self.b(POINTWISE[self.rng.integers(len(POINTWISE))](), self.any(lambda v: bool(v.shape)))

    def reduced(self) -> Value:
        x = self.any(lambda v: len(v.shape) > 1)
        op = (ops.Sum, ops.Mean, ops.Max)[self.rng.integers(3)]
        return self.b(op((int(self.rng.integers(len(x.shape))),), bool(self.rng.integers(2))), x)


def shared_values(seed: int) -> Graph:
    """A graph of an input `x` [3, 4], two weights and up to thirty steps."""
    drawn = SharedValues(seed)
    return drawn.graph(int(drawn.rng.integers(4, 30)))
