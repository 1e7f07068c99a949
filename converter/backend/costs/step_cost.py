"""Cost model: a training step by the table of its target, operator by operator; and its memory traffic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from converter.backend import builtins as tfl
from converter.backend.builtins.base import Pointwise
from converter.backend.builtins.quantized import DynamicRange, Int8
from converter.backend.schedule import how, known_when_loaded
from converter.backend.targets import Target
from converter.ir import Graph, Node, Value
from converter.ir.types import TensorType

#: Filter taps and places of a window that XNNPACK's smallest kernels compute.
_FEWEST_TAPS, _FEWEST_PLACES = 3, 9
#: What beginning a row of an elementwise operator costs, of what copying a run does.
_ROW = 0.25
#: The share of a depthwise convolution's figure that is not what each pixel costs, in the shapes it was measured on.
_FILTERED = 0.92


def step_cost(graph: Graph, target: Target) -> int:
    """Return the cost of running a lowered graph once, in the unit of the target's table."""
    known = known_when_loaded(graph)
    return round(sum(operator_cost(known, node, target) for node in graph.nodes))


def product_cost(graph: Graph, target: Target) -> int:
    """Return what of `step_cost` is that of products: what multiplies and adds, in whichever form."""
    nodes = [node for node in graph.nodes if getattr(node.op, "op", node.op).product]
    loops = [node.op for node in graph.nodes if isinstance(node.op, tfl.While)]
    within = sum(loop.steps * product_cost(body, target) for loop in loops for body in loop.bodies())
    known = known_when_loaded(graph)
    return round(sum(operator_cost(known, node, target) for node in nodes)) + within


def step_traffic(graph: Graph, target: Target) -> int:
    """Return the bytes that operators read and write in a run, of those whose operands outgrow the cache.

    No table of instructions sees them. What a larger cache than a core's own still holds is counted, too.
    """
    known = known_when_loaded(graph)
    return sum(_traffic(known, node, target) for node in graph.nodes)


def _traffic(known: Collection[Value], node: Node, target: Target) -> int:
    match node.op:
        case tfl.VarHandle() | tfl.ReadVariable() | tfl.AssignVariable() | tfl.CallOnce() | tfl.DequantizeFloat16():
            return 0
        case tfl.While() as loop:
            return loop.steps * sum(step_traffic(body, target) for body in loop.bodies())
        case tfl.Reshape() if how(known, node, target.lanes) is not None:
            return 0
    touched = sum(v.type.nbytes for v in (*node.inputs, *node.outputs))
    return touched if touched > target.cache_bytes else 0


def operator_cost(known: Collection[Value], node: Node, target: Target) -> float:
    """Return the cost of running one operator once; of a loop, of all its steps. `known`: see `known_when_loaded`."""
    op, inputs, outputs = node.op, [v.type for v in node.inputs], [v.type for v in node.outputs]
    delegated = how(known, node, target.lanes) is not None
    match op:
        case tfl.VarHandle() | tfl.ReadVariable() | tfl.AssignVariable() | tfl.CallOnce() | tfl.DequantizeFloat16():
            return 0.0
        case tfl.While():
            return op.steps * sum(step_cost(body, target) for body in op.bodies())
        case tfl.Reshape() if delegated:
            return 0.0
        case tfl.BatchMatmul():
            k, n = inputs[0].shape[-2 if op.adj_x else -1], outputs[0].shape[-1]
            m = outputs[0].shape[-2]
            products = prod(inputs[1].shape[:-2])
            times = max(outputs[0].size // (m * n * products), 1)
            transposed = target.moved("packed", inputs[0].nbytes) if op.adj_x else 0.0
            return transposed + products * target.product(m, k, n, node.inputs[1] in known, times=times)
        case Int8() | DynamicRange():
            form = f"{op.op.product}.{'int8' if isinstance(op, Int8) else 'dynamic'}"
            if form in target.per_mac:
                return target.macs(form, _macs(node))
        case tfl.Carried() if op.twin is not None and op.product:
            form = f"{op.product}.{_arithmetic(inputs[0], outputs[0])}"
            if form in target.per_mac:
                return target.macs(form, _macs(node))
            return operator_cost(known, replace(node, op=op.twin), target)
        case tfl.FullyConnected():
            n, k = inputs[1].shape
            form = "fully_connected.constant" if delegated else "fully_connected.runtime"
            return target.tiles(form, inputs[0].size // k, k, n)
        case tfl.DepthwiseConv2D() | tfl.Conv2D() | tfl.TransposeConv():
            return _convolution_cost(node, target, delegated)
        case tfl.MaxPool2D() | tfl.AveragePool2D() if delegated:
            places = max(prod(op.window), _FEWEST_PLACES)
            return target.macs("depthwise.constant", _FILTERED * places * outputs[0].size)
        case tfl.Pad():
            padded = [axis for axis, around in enumerate(op.paddings) if any(around)]
            runs = prod(outputs[0].shape[: padded[-1] + 1]) if padded else 0
            return target.moved("shuffled", inputs[0].nbytes + outputs[0].nbytes) + runs * target.run
        case Pointwise() if delegated:
            return _pointwise_cost(node, target)
    form = op.moved or ("delegated" if delegated else "shuffled")
    return target.moved(form, sum(t.nbytes for t in (*inputs, *outputs)))


def _arithmetic(x: TensorType, y: TensorType) -> str:
    """Return what tables call the numbers that a product of quantised weights computes with."""
    integers = x.quantization is not None and y.quantization is not None and x.dtype.itemsize == y.dtype.itemsize == 1
    return "int8" if integers else "dynamic"


def _convolution_cost(node: Node, target: Target, delegated: bool) -> float:
    op, y = node.op, node.outputs[0].type
    w = node.inputs[0 if isinstance(op, tfl.TransposeConv) else 1].type
    images, columns = y.shape[0], y.shape[-1]
    _, *kernel, inside = w.shape
    taps, pixels = prod(kernel), y.size // columns
    match op:
        case tfl.DepthwiseConv2D():
            if not delegated:  # no table has a figure: at best as quick as the other convolutions
                return max(target.macs(form, _macs(node)) for form in ("depthwise.constant", "conv.runtime"))
            macs = _FILTERED * max(taps, _FEWEST_TAPS) * y.size
            return target.macs("depthwise.constant", macs) + pixels * target.run
        case tfl.Conv2D():
            as_it_is = taps == 1 and op.strides == (1, 1)
            if delegated:
                images = 1 if as_it_is else images  # then the pixels of all images are the rows of one product
                return target.tiles("conv.constant", pixels // images, inside, columns, images, taps)
            return target.gathered(_macs(node), pixels * taps * inside, y.size, 0 if as_it_is else pixels * kernel[0])
        case tfl.TransposeConv() if delegated and op.strides == (1, 1):
            return target.tiles("transpose_conv.constant", pixels // images, inside, columns, images, taps)
    return target.macs(f"transpose_conv.{'constant' if delegated else 'runtime'}", _macs(node))


def _pointwise_cost(node: Node, target: Target) -> float:
    """Return the bytes: operands that are repeated are read again for each row, an activation is a pass."""
    inputs, y = [v.type for v in node.inputs], node.outputs[0].type
    nbytes = sum(y.nbytes if t.size > 1 else t.nbytes for t in inputs) + y.nbytes
    if getattr(node.op, "activation", "NONE") != "NONE":
        nbytes += 2 * y.nbytes
    repeated = any(1 < t.size < y.size for t in inputs)
    rows = y.size // y.shape[-1] if repeated else 0
    return target.moved("delegated", nbytes) + rows * _ROW * target.run


def _macs(node: Node) -> int:
    return node.op.cost(tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)).flops // 2
