"""What masks that are known at compile time do to attention: which weights of a softmax are 0, whatever the scores are.

A mask reaches the scores by addition (0 or -1e9) or by a choice (the score, or the least number of float32), and what
it says is known in part where padding, which is not known, is joined with it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from converter.ir import BOOL, Graph, Node, Shape, Value, is_described, ops

#: Scores that lie so far below the others that e^(their difference) is 0 in float32 and in float64: nothing that a net
#: computes is as large, and one that was would have lost its fraction in the addition.
HIDDEN = -1e7


class Visible:
    """What is known of the values of a graph.

    Arrays have the rank of their value, and size 1 along each axis on which all is alike.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        #: Truth values: where they are surely true, and where surely false.
        self._true: dict[Value, np.ndarray] = {}
        self._false: dict[Value, np.ndarray] = {}
        #: Numbers: what masks add to them.
        self._below: dict[Value, np.ndarray] = {}
        #: Weights of attention, and what is made of them: where they are surely 0.
        self._zero: dict[Value, np.ndarray] = {}
        for node in graph.nodes:
            if len(node.outputs) == 1:
                self._follow(node)

    def zero(self, value: Value) -> np.ndarray | None:
        """Where weights of attention are surely 0, if that is known of any: bool, of the value's rank."""
        return self._zero.get(value)

    def _follow(self, node: Node) -> None:
        """Takes down what is known of the result of a node."""
        y, inputs = node.output, node.inputs
        match node.op:
            case ops.Reshape() | ops.Transpose() | ops.BroadcastTo():
                for known in (self._true, self._false, self._below, self._zero):
                    if inputs[0] in known and (moved := _moved(node, known[inputs[0]])) is not None:
                        known[y] = moved
            case ops.LogicalNot():
                self._note(y, self._true, self._is_false(inputs[0]))
                self._note(y, self._false, self._is_true(inputs[0]))
            case ops.LogicalAnd():
                self._note(y, self._true, self._is_true(inputs[0]) & self._is_true(inputs[1]))
                self._note(y, self._false, self._is_false(inputs[0]) | self._is_false(inputs[1]))
            case ops.LogicalOr():
                self._note(y, self._true, self._is_true(inputs[0]) | self._is_true(inputs[1]))
                self._note(y, self._false, self._is_false(inputs[0]) & self._is_false(inputs[1]))
            case ops.Add():
                self._note(y, self._below, self._lies_below(inputs[0]) + self._lies_below(inputs[1]))
            case ops.Sub():
                taken = self._known(inputs[1], {}, lambda array: np.where(array >= -HIDDEN, array, 0.0))
                self._note(y, self._below, self._lies_below(inputs[0]) + 0.0 - taken)
            case ops.Mul() | ops.Div():
                self._follow_product(node)
            case ops.Select():
                self._follow_choice(node)
            case ops.Softmax() if inputs[0] in self._below:
                hidden = self._below[inputs[0]] <= HIDDEN
                # A row of which all is hidden is told apart by its scores, as if nothing was.
                self._note(y, self._zero, hidden & ~hidden.all(-1, keepdims=True) if hidden.shape[-1] > 1 else None)

    def _follow_product(self, node: Node) -> None:
        x, by = node.inputs
        if not self._zero.keys().isdisjoint(node.inputs):
            zero = self._is_zero(x) | self._is_zero(by) if isinstance(node.op, ops.Mul) else self._is_zero(x)
            self._note(node.output, self._zero, zero)
        for scaled, factor in ((x, by), (by, x)) if isinstance(node.op, ops.Mul) else ((x, by),):
            number = self._number(factor)
            if scaled in self._below and number is not None and number > 0:
                below = self._below[scaled]
                self._note(node.output, self._below, below * number if isinstance(node.op, ops.Mul) else below / number)

    def _follow_choice(self, node: Node) -> None:
        condition, x, other = node.inputs
        if node.output.dtype == BOOL:
            return
        first, second = self._is_true(condition), self._is_false(condition)

        def of_either(one: np.ndarray, two: np.ndarray) -> np.ndarray:
            return np.where(first, one, np.where(second, two, np.maximum(one, two)))

        self._note(node.output, self._below, of_either(self._lies_below(x), self._lies_below(other)))
        if not self._zero.keys().isdisjoint(node.inputs):
            zeros = self._is_zero(x), self._is_zero(other)
            either = np.where(first, zeros[0], np.where(second, zeros[1], zeros[0] & zeros[1]))
            self._note(node.output, self._zero, either)

    def _note(self, value: Value, known: dict[Value, np.ndarray], array: np.ndarray | None) -> None:
        if array is not None and array.any():
            rank = len(value.shape)
            known[value] = array.reshape((1,) * (rank - array.ndim) + array.shape)

    def _is_true(self, value: Value) -> np.ndarray:
        return self._known(value, self._true, lambda array: array)

    def _is_false(self, value: Value) -> np.ndarray:
        return self._known(value, self._false, lambda array: ~array)

    def _is_zero(self, value: Value) -> np.ndarray:
        return self._known(value, self._zero, lambda array: array == 0)

    def _lies_below(self, value: Value) -> np.ndarray:
        return self._known(value, self._below, lambda array: np.where(array <= HIDDEN, array, 0.0))

    def _known(self, value: Value, known: dict[Value, np.ndarray], of_constant: Any) -> np.ndarray:
        """What is known, with nothing as False or 0."""
        constant = self._graph.constants.get(value)
        if constant is not None and not is_described(constant):
            return np.asarray(of_constant(constant))
        return known.get(value, np.zeros((1,) * len(value.shape), bool))

    def _number(self, value: Value) -> float | None:
        constant = self._graph.constants.get(value)
        known = constant is not None and not is_described(constant) and constant.size == 1
        return float(constant.flat[0]) if constant is not None and known else None


def _moved(node: Node, array: np.ndarray) -> np.ndarray | None:
    """What is known behind an op that moves elements; None where axes that it varies along are not kept."""
    match node.op:
        case ops.Transpose(perm=perm):
            return array.transpose(perm)
        case ops.Reshape(shape=shape):
            to = {axis: same_axis(node.inputs[0].shape, shape, axis) for axis, n in enumerate(array.shape) if n > 1}
            if None in to.values():
                return None
            return array.reshape([shape[axis] if axis in to.values() else 1 for axis in range(len(shape))])
    return array.reshape((1,) * (len(node.output.shape) - array.ndim) + array.shape)


def same_axis(before: Shape, after: Shape, axis: int) -> int | None:
    """Where an axis is after a reshape that keeps it; None where it is cut or joined with others."""
    for place, size in enumerate(after):
        if size == before[axis] and prod(after[:place]) == prod(before[:axis]):
            return place
    return None
