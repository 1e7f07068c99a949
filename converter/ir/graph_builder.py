"""Base class of graph builders: appends nodes to a graph of either level, with shape inference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from converter.ir.graph import Graph, Node, Value
from converter.ir.op import Op, ShapeError
from converter.ir.quantization import Quantization
from converter.ir.types import BOOL, FLOAT32, NOWHERE, Origin, Shape, TensorType

#: What may stand for an operand: a value of the graph, or a number or array that becomes a constant.
Operand = Value | float | int | np.ndarray


class GraphBuilder(ABC):
    """Appends nodes to `graph`, in the ops of the level that a subclass is for.

    Calling it applies an op: `b(ops.Add(), x, 1.0)`.

    Python numbers take the dtype of the first operand that is a Value and not bool; equal small constants are shared.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        self.graph = graph if graph is not None else Graph()
        self.origin = NOWHERE
        self._shared: dict[tuple, Value] = {}

    @contextmanager
    def at(self, origin: Origin) -> Iterator[None]:
        """Nodes built inside carry this origin."""
        before, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = before

    def input(self, name: str, type: TensorType) -> Value:
        """Adds a graph input."""
        value = Value(type, name)
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Any, dtype: Any = None, name: str = "") -> Value:
        """Return a constant; small equal ones (by content) are shared. float64 and int64 are narrowed."""
        array = np.asarray(array, dtype=dtype)
        if array.dtype == np.float64:
            array = array.astype(FLOAT32)
        elif array.dtype == np.int64:
            array = array.astype(np.int32)
        key = (array.dtype, array.shape, array.tobytes()) if array.size <= 64 else None
        if key in self._shared:
            return self._shared[key]
        value = Value(TensorType(array.shape, array.dtype), name or "const")
        self.graph.constants[value] = array
        if key is not None:
            self._shared[key] = value
        return value

    def quantized(self, stored: np.ndarray, quantization: Quantization, name: str = "") -> Value:
        """Return a constant of integers that stand for real numbers."""
        value = Value(TensorType(stored.shape, stored.dtype, quantization), name or "const")
        self.graph.constants[value] = stored
        return value

    def __call__(self, op: Op, *operands: Operand) -> Any:
        """Applies an op; returns its output Value (a tuple of Values for an op of several outputs)."""
        outputs = self.node(op, *operands).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    def node(self, op: Op, *operands: Operand) -> Node:
        """Applies an op; returns the node."""
        dtype = next((o.dtype for o in operands if isinstance(o, Value) and o.dtype != BOOL), FLOAT32)
        inputs = tuple(o if isinstance(o, Value) else self.constant(o, dtype) for o in operands)
        try:
            types = op.infer(*(v.type for v in inputs))
        except ShapeError as error:
            raise ShapeError(f"{error} (in {self.origin})") from None
        types = types if isinstance(types, tuple) else (types,)
        label = f"{self.origin.layer}/{op.name}" if self.origin.layer else op.name
        node = Node(op, inputs, tuple(Value(t, label) for t in types), self.origin)
        return self.append(node)

    def append(self, node: Node) -> Node:
        """Adds a node that exists already."""
        self.graph.nodes.append(node)
        return node

    @abstractmethod
    def reshape(self, x: Value, shape: Shape) -> Value:
        """Return `x` in another shape; nothing is emitted when it has it already."""

    @abstractmethod
    def broadcast_to(self, x: Value, shape: Shape) -> Value:
        """Return `x` repeated to `shape`; nothing is emitted when it has it already."""

    @abstractmethod
    def transpose(self, x: Value, perm: Shape) -> Value:
        """Return `x` with its axes reordered; nothing is emitted for the identity."""

    @abstractmethod
    def sum(self, x: Value, axes: Shape) -> Value:
        """Return the sum of `x` over some axes, which are left out of the result."""

    def sum_to_shape(self, value: Value, shape: Shape) -> Value:
        """Undo broadcasting: sum `value` over the axes along which a tensor of `shape` was repeated."""
        extra = len(value.shape) - len(shape)
        repeated = (i + extra for i, size in enumerate(shape) if size == 1 and value.shape[i + extra] != 1)
        axes = (*range(extra), *repeated)
        return self.reshape(self.sum(value, axes) if axes else value, shape)

    def inline(self, graph: Graph, arguments: Sequence[Value]) -> dict[str, Value]:
        """Copies the nodes of `graph` here with its inputs bound to `arguments`; returns its outputs by name.

        Nodes without a layer get that of the builder.
        """
        bound: dict[Value, Value] = dict(zip(graph.inputs, arguments, strict=True))
        bound |= {value: self.constant(array) for value, array in graph.constants.items()}
        for node in graph.nodes:
            origin = node.origin.in_phase(self.origin.phase) if not node.origin.is_late else node.origin
            origin = replace(origin, layer=origin.layer or self.origin.layer)
            with self.at(origin):
                copy = self.node(node.op, *(bound[v] for v in node.inputs))
            bound |= zip(node.outputs, copy.outputs, strict=True)
        return {name: bound[value] for name, value in graph.outputs.items()}
