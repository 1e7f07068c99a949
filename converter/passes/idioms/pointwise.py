"""Recognises activation functions by their values: gelu, silu, relu6 and the like, however they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from converter.ir import Builder, Graph, Node, Op, TensorType, Value, evaluate, ops
from converter.ir.rewrite import Rewriter, eliminate_dead_code
from converter.passes.autodiff import pull_back
from converter.passes.idioms.softmax import as_written
from converter.support.errors import UnsupportedError

#: Where functions are compared: kinks and their neighbourhood, the usual range, odd numbers in it, and far out.
POINTS = np.concatenate(
    [
        np.linspace(-12, 12, 97),
        7 * np.sin(np.arange(1, 33)),
        [s * m for m in (1e-4, 1e-2, 17.3, 31.0, 300.0, 1e4, 1e6, 1e9, 1e15, 1e30) for s in (-1, 1)],
    ]
)
#: How far back from a node the function's argument is looked for.
FARTHEST = 10

#: Nodes in order, the value that they begin with, what they come to, and the numbers that they read.
Cone = tuple[list[Node], Value, Value, dict[Value, float]]

_UNARY = tuple(kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Unary))
_KNOWN: tuple[Op, ...] = tuple(op for kind in dict.fromkeys(_UNARY) for op in kind.written())


class PointwiseForms:
    """A rewriting rule that replaces an elementwise function of one tensor by the op that has the same values.

    For every value it keeps how it depends on each earlier tensor that it is a function of alone: the function's
    values at POINTS. Two functions are the same when values and derivatives agree there.
    """

    def __init__(self) -> None:
        self._functions: dict[Value, dict[Value, np.ndarray]] = {}
        self._targets = {op: op.evaluate(POINTS) for op in _KNOWN}

    def __call__(self, b: Rewriter, node: Node) -> Value | None:
        if not node.op.elementwise:
            return None
        functions = self._of_earlier(b, node)
        self._functions[node.output] = functions
        if node.output.dtype.kind != "f" or isinstance(node.op, tuple(type(op) for op in _KNOWN)):
            return None
        for x, values in reversed(functions.items()):  # the farthest first: the largest form
            if x.type != node.output.type:
                continue
            for op in self._candidates(values):
                if self._same_slope(b, node.output, node, x, op):
                    made = b(_as_spelled(b, node, x, op), x)
                    before = self._functions.get(x, {})
                    self._functions[made] = {v: f for v, f in functions.items() if v is x or v in before}
                    return made
        return None

    def _of_earlier(self, b: Rewriter, node: Node) -> dict[Value, np.ndarray]:
        """Return the node's output as a function of each earlier tensor, nearest first."""
        numbers = {v: b.scalar(v) for v in node.inputs if b.array(v) is not None}
        variables = [v for v in dict.fromkeys(node.inputs) if v not in numbers]
        if not variables or None in numbers.values():
            return {}
        tables = [{v: POINTS, **self._functions.get(v, {})} for v in variables]
        shared = [x for x in tables[0] if all(x in table for table in tables)][:FARTHEST]
        functions = {}
        with np.errstate(all="ignore"):
            for x in shared:
                if x.dtype.kind != "f":
                    continue
                known = {**numbers, **{v: table[x] for v, table in zip(variables, tables, strict=True)}}
                functions[x] = np.asarray(node.op.evaluate(*(_typed(known[v], v) for v in node.inputs)))
        return functions

    def _candidates(self, values: np.ndarray) -> Iterator[Op]:
        if values.shape != POINTS.shape or values.dtype.kind != "f":
            return
        for op, target in self._targets.items():
            if _close(values, target):
                yield op
        alpha = values[0] / POINTS[0]
        if 0 < alpha < 0.9 and _close(values, ops.LeakyRelu(alpha).evaluate(POINTS)):
            yield ops.LeakyRelu(as_written(alpha))
            yield ops.LeakyRelu(as_written(alpha), flat=True)

    def _same_slope(self, b: Rewriter, y: Value, node: Node, x: Value, op: Op) -> bool:
        """Return whether the derivatives agree too, at the kinks above all.

        The written form may have none (NaN) somewhere.
        """
        written = slope(*_cone(b, node, x))
        known = slope(*_alone(op, x, y))
        if written is None or known is None:
            return False
        return bool(np.all(np.isnan(written) | (np.abs(written - known) <= 1e-4)))


def _typed(numbers: Any, of: Value) -> np.ndarray:
    """Whole numbers and bools as such; floats in double precision."""
    return np.asarray(numbers, None if of.dtype.kind == "f" else of.dtype)


def _close(values: np.ndarray, target: np.ndarray) -> bool:
    """Return whether both are equal but for rounded constants.

    Near 0 nothing may be added: log(relu(x) + 1e-9) is not log(relu(x)).
    """
    relative = np.where(np.abs(target) > 1e-3, 2e-6, 2e-5)
    absolute = np.where(np.abs(POINTS) < 5, 1e-30, 1e-13)  # far out, terms cancel in double precision
    return bool(np.all(np.abs(values - target) <= relative * np.abs(target) + absolute))


def _cone(b: Rewriter, root: Node, x: Value) -> Cone:
    """Return the nodes between `x` and the root, in order, and the numbers they read."""
    nodes: dict[Node, None] = {}
    numbers: dict[Value, float] = {}

    def visit(node: Node) -> None:
        if node in nodes:
            return
        for value in node.inputs:
            number = b.scalar(value)
            if number is not None:
                numbers[value] = number
            elif value is not x:
                visit(_maker(b, value))
        nodes[node] = None

    visit(root)
    return list(nodes), x, root.output, numbers


def _maker(b: Rewriter, value: Value) -> Node:
    node = b.producer(value, Op)
    assert node is not None
    return node


def _alone(op: Op, x: Value, y: Value) -> Cone:
    return [Node(op, (x,), (y,))], x, y, {}


def _as_spelled(b: Rewriter, node: Node, x: Value, op: Op) -> Op:
    """Return the op, with the formula's derivative where another one is left of an infinite cotangent.

    Of `where(v > 0, v, 0)` and of `v * (v > 0)` the finite derivatives are those of one op; that of the first is 0
    where v is not above 0 whatever comes, that of the second 0 times it.
    """
    cone = _cone(b, node, x)
    spelled = derivative(*cone)
    if spelled is None or not isinstance(op, ops.Activation) or not all(n.op.elementwise for n in spelled.nodes):
        return op
    known = derivative(*_alone(op, x, node.output))
    assert known is not None
    left, right = (_of_infinite(graph) for graph in (known, spelled))
    return op if np.array_equal(left, right) else replace(op, spelled=spelled)


def _of_infinite(graph: Graph) -> np.ndarray:
    """Return where an infinite cotangent is cut off (0), becomes NaN (1) or stays infinite (2), at POINTS."""
    with np.errstate(all="ignore"):
        made = evaluate(graph, [POINTS, np.full(POINTS.shape, np.inf)], float_dtype=np.float64)[0]["dx"]
    return np.where(np.isnan(made), 1, np.where(made == 0, 0, 2))


def derivative(nodes: list[Node], x: Value, y: Value, numbers: dict[Value, float]) -> Graph | None:
    """Return a graph that takes "x" at POINTS and "dy", a cotangent of y, to "dx"; None if an op has no derivative.

    It is exact where dy is infinite.
    """
    b = Builder()
    bound: dict[Value, Value] = {x: b.input("x", TensorType(POINTS.shape))}
    bound |= {v: b.constant(np.asarray(number, v.dtype)) for v, number in numbers.items()}
    for node in nodes:
        bound[node.output] = b(node.op, *(bound[v] for v in node.inputs))
    dy = b.input("dy", bound[y].type)
    try:
        graph, found = pull_back(b.graph, {bound[y]: dy}, [bound[x]], infinite=True)
    except UnsupportedError:
        return None
    if bound[x] not in found:
        return None
    graph.outputs = {"dx": found[bound[x]]}
    return eliminate_dead_code(graph)


def slope(nodes: list[Node], x: Value, y: Value, numbers: dict[Value, float]) -> np.ndarray | None:
    """Return the derivative of y by x at POINTS, by the ops' own derivatives; None where one has none."""
    graph = derivative(nodes, x, y, numbers)
    if graph is None:
        return None
    return evaluate(graph, [POINTS, np.ones(POINTS.shape)], float_dtype=np.float64)[0]["dx"]
