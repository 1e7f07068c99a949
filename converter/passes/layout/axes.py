"""Axes of an operator: how those of its operands and its result run along each other, and lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from converter.ir import Shape
from converter.passes.layout.memory import Memory, joined, split, strides_of

#: Of an axis, named by a number: which it is, how many elements, and how far apart they are on the axis.
Loop = tuple[int, int, int]


@dataclass(frozen=True)
class Order:
    """Axes of a tensor, or parts of them, in the order in which they lie. What stands together of one is one axis."""

    loops: tuple[Loop, ...]

    @staticmethod
    def of(shape: Shape, memory: Memory, like: Shape = ()) -> Order | None:
        """Return how the axes of a shape lie; None where loops do not end where axes do.

        Axes of one element stand where the shape `like`, in which the tensor is stored beside, has some. Where that is
        of another rank or size, each stands before the next axis, and the last after the one before, so that a
        picture of one row keeps its form.
        """
        parts = split(memory, shape)
        if parts is None:
            return None
        loops = [loop for part in parts for loop in part]
        if sorted(like) == sorted(shape) and [size for size in like if size != 1] == [size for _, size, _ in loops]:
            ones, others = iter([axis for axis, size in enumerate(shape) if size == 1]), iter(loops)
            return Order(tuple((next(ones), 1, 1) if size == 1 else next(others) for size in like))
        for axis in reversed(range(len(shape))):
            if shape[axis] != 1:
                continue
            after = [i for i, loop in enumerate(loops) if loop[0] == axis + 1]
            before = [i + 1 for i, loop in enumerate(loops) if loop[0] < axis]
            last = max((loop[0] for loop in loops if loop[0] < axis), default=-1)
            near = [i + 1 for i, loop in enumerate(loops) if loop[0] == last] if before else []
            loops.insert(min(after) if after else max(near, default=0), (axis, 1, 1))
        return Order(tuple(loops))

    @property
    def axes(self) -> list[int]:
        """The axis that each stored axis is, or is a part of."""
        return [axis for axis, _ in groupby(axis for axis, _, _ in self.loops)]

    @property
    def stored(self) -> Shape:
        """The shape in which it is stored."""
        runs = groupby(self.loops, key=lambda loop: loop[0])
        return tuple(prod(size for _, size, _ in run) for _, run in runs)

    def changes(self, shape: Shape) -> bool:
        """Return whether that is not how the shape says it."""
        return self.loops != tuple((axis, size, 1) for axis, size in enumerate(shape))

    def memory(self, shape: Shape) -> Memory:
        """Return how a tensor of the shape lies."""
        strides = strides_of(shape)
        return joined((size, step * strides[axis]) for axis, size, step in self.loops)

    def where(self, axis: int) -> tuple[int, ...]:
        """Return the stored axes that an axis became."""
        return tuple(i for i, one in enumerate(self.axes) if one == axis)


@dataclass(frozen=True)
class Along:
    """Which axes of an operator's operands and result run along each other: those of one number.

    Attributes:
        operands: for each operand the number of each of its axes.
        result: the same of the result.
        sizes: of each number, the largest of its axes.
        whole: numbers along which the order counts, or the sizes differ.
    """

    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    sizes: Mapping[int, int]
    whole: frozenset[int] = frozenset()

    def around(self, known: Sequence[int], order: Order) -> Order | None:
        """Return how all numbers lie where the axes of one tensor do so; None where one that is whole is torn.

        What is not in it stands after the number before.
        """
        loops: list[Loop] = []
        for axis, run in groupby(order.loops, key=lambda loop: loop[0]):
            number, parts = known[axis], [(known[axis], size, step) for _, size, step in run]
            if number in self.whole or prod(size for _, size, _ in parts) == 1:
                steps = [step for _, size, step in parts if size > 1]
                if steps != sorted(steps, reverse=True) or any(loop[0] == number for loop in loops):
                    return None
                parts = [(number, self.sizes[number], 1)]
            loops += parts
        for number in sorted(self.sizes.keys() - set(known)):
            there = [i for i, loop in enumerate(loops) if loop[0] < number]
            before = max((loops[i][0] for i in there), default=-1)
            at = max((i + 1 for i in there if loops[i][0] == before), default=0)
            loops.insert(at, (number, self.sizes[number], 1))
        return Order(tuple(loops))

    def part(self, around: Order, numbers: Sequence[int], shape: Shape) -> Order:
        """Return how a tensor lies whose axes have these numbers."""
        loops = []
        for number, size, step in around.loops:
            if number in numbers:
                axis = numbers.index(number)
                if shape[axis] != self.sizes[number]:
                    size, step = (1, 1) if shape[axis] == 1 else (shape[axis], 1)
                loops.append((axis, size, step))
        return Order(tuple(loops))
