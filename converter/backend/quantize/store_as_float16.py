"""Float16 storage: frozen constants of lowered graphs that float16 holds exactly, in half the bytes of the file.

What a program computes is the same to the bit. Only where nothing is kept of the float32 numbers beside what kernels
pack of them (docs/decisions/float16.md has what was measured).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import FLOAT16, FLOAT32, Graph, Node, Op, TensorType, Value, fingerprint, nested
from converter.ir.described import described_integers, is_described, is_of_float16

#: Elements of the smallest constant that is stored so: what it saves is more than its operator takes.
LEAST = 2048

#: What is right on Hexagon with a CAST of a constant.
_BY_ENGINES = (tfl.BatchMatmul, tfl.FullyConnected, tfl.Conv2D, tfl.DepthwiseConv2D, tfl.TransposeConv)

#: Tells constants apart by what they hold.
_Content = tuple[int, int]


def stored_as_float16(
    graphs: Iterable[Graph],
    is_delegated: Callable[[Graph, Node], bool],
    kept: Collection[np.ndarray] = (),
    filters: bool = True,
    by_engine: bool = False,
) -> Callable[[Graph], Graph]:
    """Return what stores constants of lowered graphs in float16.

    Before: CONV_2D(x, W, b).  After: CONV_2D(x, DEQUANTIZE(W16), b), once for each W.
    Before: GATHER(W, ids).    After: CAST(GATHER(W16, ids)).
    Before: CAST(W).           After: CAST(W16).
    Before: BATCH_MATMUL(x, W).    After: BATCH_MATMUL(x, CAST(W16)), whose kernel would keep DEQUANTIZE's result, too.

    A constant that some operator of some graph needs in float32 stays so in all, else the file would hold it twice.

    Args:
        graphs: all that go into one file.
        is_delegated: whether the CPU delegate runs a node.
        kept: what the file holds in float32 anyway.
        filters: whether what kernels pack is stored so, too, in graphs that are scheduled: operators that unpack it
            have no place of their own in an order.
        by_engine: for one that computes in float16: each product and convolution reads a CAST of its own, as the CPU's
            delegate takes no DEQUANTIZE of what both read.
    """
    graphs = [inner for graph in graphs for inner in nested(graph)]
    packing = _BY_ENGINES if by_engine else (tfl.Conv2D, tfl.FullyConnected)
    readers: tuple[type[Op], ...] = packing if filters else ()
    others = {_content(array) for array in kept if array.size >= LEAST}
    found = set[_Content]()
    for graph in graphs:
        for value, array in graph.constants.items():
            if value.dtype == FLOAT32 and value.type.quantization is None and value.type.size >= LEAST:
                (found if _is_exact(array) else others).add(_content(array))
        others |= {_content(graph.constants[v]) for v in _needed_in_float32(graph, is_delegated, readers, by_engine)}
    storing = _Storing(found - others, by_engine)
    return storing.stored


def _content(array: np.ndarray) -> _Content:
    return fingerprint(array), array.size


def _is_exact(array: np.ndarray) -> bool:
    """Return whether float16 has all numbers of an array, to the bit."""
    if is_described(array):
        return is_of_float16(array)
    return bool(np.array_equal(_float16(array).astype(FLOAT32).view(np.uint32), array.view(np.uint32)))


def _float16(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(FLOAT16)


def _needed_in_float32(
    graph: Graph, is_delegated: Callable[[Graph, Node], bool], readers: tuple[type[Op], ...], by_engine: bool
) -> Iterator[Value]:
    """Yield constants of which some reader takes float32 alone, or that readers in several partitions would keep."""
    runs = [is_delegated(graph, node) for node in graph.nodes]
    first: dict[Value, int] = {}
    breaks = np.cumsum([not run for run in runs])
    for place, node in enumerate(graph.nodes):
        for number, value in enumerate(node.inputs):
            if value not in graph.constants:
                continue
            match node.op:
                case tfl.CastWeight():
                    continue
                case tfl.Gather() if number == 0:
                    continue
                case tfl.BatchMatmul() if number == 1 and readers:
                    continue
                case _ if isinstance(node.op, readers) and runs[place] and (number > 0 or by_engine):
                    if breaks[first.setdefault(value, place)] == breaks[place]:
                        continue
            yield value
    yield from (value for value in graph.results() if value in graph.constants)


class _Storing:
    """Puts float16 in the place of constants with one of these contents."""

    def __init__(self, contents: Collection[_Content], by_cast: bool) -> None:
        self._contents, self._by_cast = contents, by_cast
        self._made: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by the identity of an array, which is kept
        self._graphs: dict[Graph, Graph] = {}

    def stored(self, graph: Graph) -> Graph:
        """Return the graph, and those that its loops run, which may share some, with such constants in float16."""
        if graph not in self._graphs:
            self._graphs[graph] = self._stored(graph)
        return self._graphs[graph]

    def _stored(self, graph: Graph) -> Graph:
        halves = {
            value: Value(TensorType(value.shape, FLOAT16), value.name)
            for value, array in graph.constants.items()
            if value.dtype == FLOAT32 and value.type.size >= LEAST and _content(array) in self._contents
        }
        after = graph.copy()
        after.constants = {
            halves.get(v, v): self._half(array) if v in halves else array for v, array in graph.constants.items()
        }
        after.nodes = []
        unpacked = set[Value]()
        for node in graph.nodes:
            if bodies := node.op.bodies():
                node = replace(node, op=node.op.with_bodies(*map(self.stored, bodies)))
            match node.op:
                case tfl.CastWeight() if node.inputs[0] in halves:
                    after.nodes.append(replace(node, inputs=(halves[node.inputs[0]],)))
                    continue
                case tfl.Gather() if node.inputs[0] in halves:
                    rows = Value(TensorType(node.output.shape, FLOAT16), node.output.name)
                    after.nodes.append(
                        replace(node, inputs=(halves[node.inputs[0]], *node.inputs[1:]), outputs=(rows,))
                    )
                    after.nodes.append(Node(tfl.Cast(FLOAT32), (rows,), node.outputs, node.origin))
                    continue
            for value in dict.fromkeys(node.inputs):
                if value in halves and (self._by_cast or isinstance(node.op, tfl.BatchMatmul)):
                    own = Value(value.type, value.name)
                    after.nodes.append(Node(tfl.CastWeight(), (halves[value],), (own,), node.origin))
                    node = replace(node, inputs=tuple(own if v is value else v for v in node.inputs))
                elif value in halves and value not in unpacked:
                    unpacked.add(value)
                    after.nodes.append(Node(tfl.DequantizeFloat16(), (halves[value],), (value,), node.origin))
            after.nodes.append(node)
        return after

    def _half(self, array: np.ndarray) -> np.ndarray:
        """Return the same numbers; parts of one array are parts of one array again, as a file shares them."""
        if is_described(array):
            return described_integers(array.shape, FLOAT16, f"float16 of {fingerprint(array)}")
        whole = _whole(array)
        if id(whole) not in self._made:
            self._made[id(whole)] = whole, _float16(whole)
        half = self._made[id(whole)][1]
        if whole is array:
            return half
        begin = (array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // FLOAT32.itemsize
        return half.reshape(-1)[begin : begin + array.size].reshape(array.shape)


def _whole(array: np.ndarray) -> np.ndarray:
    """Return the largest float32 array that this one is a part of, where both are dense; else the array."""
    whole = array
    while isinstance(base := whole.base, np.ndarray) and base.dtype == FLOAT32 and base.flags.c_contiguous:
        whole = base
    return whole if array.flags.c_contiguous else array
