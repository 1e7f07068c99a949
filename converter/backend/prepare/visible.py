"""Attention mask analysis: which weights of a softmax a mask known at compile time makes 0, whatever the scores.

A mask reaches the scores by addition (0 or -1e9) or by a choice (the score, or the least number of float32). In a row
of which all is hidden all keys weigh alike. Padding, which is known at run time only, may hide what a known mask leaves
of a row: where it has its say, too, no weight counts as 0.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from converter.ir import BOOL, FLOAT32, Graph, Node, Shape, Value, is_described, ops

#: Scores that lie so far below the others that e^(their difference) is 0 in float32 and in float64: nothing that a net
#: computes is as large, and one that was would have lost its fraction in the addition.
HIDDEN = -1e7
#: Elements of the largest array of what is known.
_MOST_KNOWN = 1 << 24


class Visible:
    """What is known of the values of a graph.

    Arrays have the rank of their value, and size 1 along each axis on which all is alike.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        #: Truth values that are known.
        self._truth: dict[Value, np.ndarray] = {}
        #: Numbers: what masks add to them.
        self._below: dict[Value, np.ndarray] = {}
        #: Weights of attention, and what is made of them: where they are surely 0.
        self._zero: dict[Value, np.ndarray] = {}
        #: Numbers that a mask of which nothing is known may have put as low.
        self._unsure = {v for v in graph.inputs if v.dtype.kind == "f"}
        self._unsure |= {v for v, p in graph.parameters.items() if _holds_a_mask(p.model_value)}
        for node in graph.nodes:
            if len(node.outputs) == 1:
                self._follow(node)
            if self._may_hide(node):
                self._unsure.update(node.outputs)

    def zero(self, value: Value) -> np.ndarray | None:
        """Return where weights of attention are surely 0, if that is known of any: bool, of the value's rank."""
        return self._zero.get(value)

    def _follow(self, node: Node) -> None:
        """Takes down what is known of the result of a node."""
        y, inputs = node.output, node.inputs
        match node.op:
            case ops.Reshape() | ops.Transpose() | ops.BroadcastTo():
                if y.dtype == BOOL:
                    truth = self._truth_of(inputs[0])
                    self._note(y, self._truth, None if truth is None else _moved(node, truth), everywhere=True)
                    return
                for known, of in ((self._below, self._lies_below), (self._zero, self._zero.get)):
                    array = of(inputs[0])
                    self._note(y, known, None if array is None else _moved(node, array))
            case ops.Add():
                self._note(y, self._below, self._lies_below(inputs[0]) + self._lies_below(inputs[1]))
            case ops.Sub():
                taken = self._known(inputs[1], {}, lambda array: np.where(array >= -HIDDEN, array, 0.0))
                self._note(y, self._below, self._lies_below(inputs[0]) + 0.0 - taken)
            case ops.Mul() | ops.Div():
                self._follow_product(node)
            case ops.Select() if y.dtype != BOOL:
                self._follow_choice(node)
            case ops.Softmax() if inputs[0] in self._below and inputs[0] not in self._unsure:
                hidden = self._below[inputs[0]] <= HIDDEN
                # A row of which all is hidden is told apart by its scores, as if nothing was.
                self._note(y, self._zero, hidden & ~hidden.all(-1, keepdims=True) if hidden.shape[-1] > 1 else None)

    def _follow_product(self, node: Node) -> None:
        x, by = node.inputs
        if not self._zero.keys().isdisjoint(node.inputs):
            zero = self._is_zero(x) | self._is_zero(by) if isinstance(node.op, ops.Mul) else self._is_zero(x)
            self._note(node.output, self._zero, zero)
        for scaled, factor in _scaled(node):
            number = self._number(factor)
            if scaled in self._below and number is not None and number > 0:
                below = self._below[scaled]
                self._note(node.output, self._below, below * number if isinstance(node.op, ops.Mul) else below / number)

    def _follow_choice(self, node: Node) -> None:
        condition, x, other = node.inputs
        truth = self._truth_of(condition)
        if truth is not None:
            self._note(node.output, self._below, np.where(truth, self._lies_below(x), self._lies_below(other)))
        if not self._zero.keys().isdisjoint(node.inputs):
            zeros = self._is_zero(x), self._is_zero(other)
            self._note(node.output, self._zero, zeros[0] & zeros[1] if truth is None else np.where(truth, *zeros))

    def _may_hide(self, node: Node) -> bool:
        """Return whether results may lie as far below others as a mask puts them, without anything known of where."""
        if node.op.contracts or all(v.dtype.kind != "f" for v in node.outputs):
            return False  # a net computes products of anything, masks included, without hiding it
        if node.op.bounds(*(v.type for v in node.inputs))[0] > HIDDEN:
            return False
        masked = [v for v in node.inputs if v.dtype == FLOAT32 and self._lies_below(v).any()]
        lost = bool(masked) and self._below.keys().isdisjoint(node.outputs)
        match node.op:
            case ops.Log():  # of 0
                return True
            case ops.Sub() if node.inputs[1] in masked:
                return True
            case ops.Mul() | ops.Div():
                lost = lost or any(self._is_huge(node, factor) for _, factor in _scaled(node))
            case ops.Select():
                lost = bool(masked) and self._truth_of(node.inputs[0]) is None
        return lost or bool(node.op.bodies()) or not self._unsure.isdisjoint(node.inputs)

    def _is_huge(self, node: Node, factor: Value) -> bool:
        """Return whether a constant makes masks of what is 0 or 1."""
        size = np.abs(self._known(factor, {}, lambda array: array.astype(np.float64)))
        if isinstance(node.op, ops.Div):
            return bool(((size > 0) & (size <= -1 / HIDDEN)).any())
        return bool((size >= -HIDDEN).any())

    def _note(
        self, value: Value, known: dict[Value, np.ndarray], array: np.ndarray | None, everywhere: bool = False
    ) -> None:
        if array is not None and (everywhere or array.any()):
            rank = len(value.shape)
            known[value] = array.reshape((1,) * (rank - array.ndim) + array.shape)

    def _truth_of(self, value: Value) -> np.ndarray | None:
        constant = self._graph.constants.get(value)
        return self._truth.get(value) if constant is None or is_described(constant) else np.asarray(constant)

    def _is_zero(self, value: Value) -> np.ndarray:
        return self._known(value, self._zero, lambda array: array == 0)

    def _lies_below(self, value: Value) -> np.ndarray:
        return self._known(value, self._below, lambda array: np.where(array <= HIDDEN, array, 0.0))

    def _known(self, value: Value, known: dict[Value, np.ndarray], of_constant: Any) -> np.ndarray:
        """Return what is known, with nothing as False or 0."""
        constant = self._graph.constants.get(value)
        if constant is not None and not is_described(constant):
            return np.asarray(of_constant(constant))
        return known.get(value, np.zeros((1,) * len(value.shape), bool))

    def _number(self, value: Value) -> float | None:
        constant = self._graph.constants.get(value)
        known = constant is not None and not is_described(constant) and constant.size == 1
        return float(constant.flat[0]) if constant is not None and known else None


def _scaled(node: Node) -> list[tuple[Value, Value]]:
    """Return what a product or quotient scales, and by what."""
    x, by = node.inputs
    return [(x, by), (by, x)] if isinstance(node.op, ops.Mul) else [(x, by)]


def _holds_a_mask(array: np.ndarray) -> bool:
    """Return whether numbers that train begin as a mask."""
    return not is_described(array) and array.dtype == FLOAT32 and bool((array <= HIDDEN).any())


def _moved(node: Node, array: np.ndarray) -> np.ndarray | None:
    """Return what is known after an op that moves elements; None where axes that it varies along are not kept."""
    match node.op:
        case ops.Transpose(perm=perm):
            return array.transpose(perm)
        case ops.Reshape(shape=shape):
            return _reshaped(array, node.inputs[0].shape, shape)
    return array.reshape((1,) * (len(node.output.shape) - array.ndim) + array.shape)


def _reshaped(array: np.ndarray, before: Shape, after: Shape) -> np.ndarray | None:
    """Return what is known after a reshape; None where that would be of many elements.

    Axes that are joined or cut vary together from there on, if one of them did.
    """
    ends = [sorted({prod(shape[: i + 1]) for i in range(len(shape))} | {1}) for shape in (before, after)]
    known, made = list(array.shape), [1] * len(after)
    for start, end in pairwise(sorted(set(ends[0]) & set(ends[1]))):
        from_, to = (_axes_between(shape, start, end) for shape in (before, after))
        if any(array.shape[axis] > 1 for axis in from_):
            for axis in from_:
                known[axis] = before[axis]
            for axis in to:
                made[axis] = after[axis]
    return np.broadcast_to(array, known).reshape(made) if prod(made) <= _MOST_KNOWN else None


def _axes_between(shape: Shape, start: int, end: int) -> list[int]:
    """Return the axes of more than one place that lie between two numbers of blocks into which axes cut a tensor."""
    return [i for i, size in enumerate(shape) if size > 1 and start <= prod(shape[:i]) and prod(shape[: i + 1]) <= end]
