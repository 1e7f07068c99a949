"""The nets as ONNX graphs, for ONNX Runtime's training: forward up to the logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EPSILON = 1e-5
#: The last opset whose operators all have gradients.
_OPSETS = (("", 17), ("com.microsoft", 1))


def arranged(name: str, array: np.ndarray) -> np.ndarray:
    """Return a weight as ONNX lays it out: filters OIHW, vectors of a convolution along the second axis."""
    if array.ndim == 4:
        return array.transpose(3, 2, 0, 1).copy()
    return array.reshape(-1, 1, 1) if name.endswith(("/gamma", "/beta", "/mean", "/var")) else array


def model(kind: str, sizes: Mapping[str, Any], arrays: Mapping[str, np.ndarray], x: np.ndarray, rows: int) -> Any:
    """Return the ONNX model of a net: input `x`, output `logits` [rows, classes]."""
    graph = Graph(arrays, x)
    logits = _NETS[kind](graph, "x", x.shape, **sizes)
    classes = arrays["head/w" if "head/w" in arrays else "head"].shape[-1]
    logits = graph("Reshape", logits, graph.constant([rows, classes]), out="logits")
    kind_of_x = TensorProto.FLOAT if x.dtype == np.float32 else TensorProto.INT64
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            kind,
            [helper.make_tensor_value_info("x", kind_of_x, x.shape)],
            [helper.make_tensor_value_info(logits, TensorProto.FLOAT, (rows, classes))],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid(*opset) for opset in _OPSETS],
        ir_version=8,
    )


class Graph:
    """Nodes and initializers while a net is written: `graph("Add", a, b)` is the name of the sum, its first output."""

    def __init__(self, arrays: Mapping[str, np.ndarray], x: np.ndarray) -> None:
        is_image = x.ndim == 4
        self.arrays = {n: arranged(n, a) if is_image else a for n, a in arrays.items()}
        self.initializers = [numpy_helper.from_array(a, n) for n, a in self.arrays.items()]
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, op: str, *inputs: str, out: str = "", more: int = 0, domain: str = "", **attributes: Any) -> str:
        name = out or f"v{len(self.nodes)}"
        outputs = [name, *(f"{name}.{i}" for i in range(more))]
        self.nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Return an initializer: floats as float32, integers as int64."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    @property
    def layers(self) -> int:
        """How many layers a transformer has."""
        return 1 + max(int(name.split("/")[1]) for name in self.arrays if name.startswith("layers/"))


def _mobilenetv2(g: Graph, x: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    def relu6(value: str) -> str:
        return g("Min", g("Relu", value), g.constant(6.0))

    x = relu6(_unit(g, "stem", _to_nchw(g, x), 2))
    for i, stride in enumerate(strides):
        block = f"blocks/{i}"
        y = relu6(_unit(g, f"{block}/expand", x)) if f"{block}/expand/w" in g.arrays else x
        y = relu6(_unit(g, f"{block}/depthwise", y, stride))
        y = _unit(g, f"{block}/project", y)
        x = g("Add", x, y) if stride == 1 and _channels(g, block) == g.arrays[f"{block}/project/w"].shape[0] else y
    x = relu6(_unit(g, "last", x))
    return _dense(g, "head", g("ReduceMean", x, axes=[2, 3], keepdims=0))


def _channels(g: Graph, block: str) -> int:
    """Of a block's input."""
    expand = g.arrays.get(f"{block}/expand/w")
    return g.arrays[f"{block}/depthwise/w"].shape[0] if expand is None else expand.shape[1]


def _resnet50(g: Graph, x: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    x = g("Relu", _unit(g, "stem", _to_nchw(g, x), 2))
    x = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    for i, stride in enumerate(strides):
        block = f"blocks/{i}"
        y = g("Relu", _unit(g, f"{block}/reduce", x))
        y = g("Relu", _unit(g, f"{block}/conv", y, stride))
        y = _unit(g, f"{block}/expand", y)
        shortcut = _unit(g, f"{block}/shortcut", x, stride) if f"{block}/shortcut/w" in g.arrays else x
        x = g("Relu", g("Add", y, shortcut))
    return _dense(g, "head", g("ReduceMean", x, axes=[2, 3], keepdims=0))


def _to_nchw(g: Graph, x: str) -> str:
    return g("Transpose", x, perm=[0, 3, 1, 2])


def _unit(g: Graph, name: str, x: str, stride: int = 1) -> str:
    """Build a convolution and its batch norm in inference mode, of which only the training form has a gradient."""
    outside, inside, k, _ = g.arrays[f"{name}/w"].shape
    groups = outside if inside == 1 else 1
    before = (k - stride) // 2 if k > 1 else 0
    after = k - stride - before if k > 1 else 0
    pads = [before, before, after, after]
    x = g("Conv", x, f"{name}/w", kernel_shape=[k, k], strides=[stride, stride], pads=pads, group=groups)
    scale = g("Mul", f"{name}/gamma", g.constant((g.arrays[f"{name}/var"] + EPSILON) ** np.float32(-0.5)))
    shift = g("Sub", f"{name}/beta", g("Mul", f"{name}/mean", scale))
    return g("Add", g("Mul", x, scale), shift)


def _encoder(g: Graph, ids: str, shape: Sequence[int], heads: int) -> str:
    x = g("Add", g("Gather", "embeddings/tokens", ids), "embeddings/positions")
    x = _layer_norm(g, "embeddings/norm", x)
    for i in range(g.layers):
        layer = f"layers/{i}"
        q, v = (_split(g, _dense(g, f"{layer}/{part}", x), shape, heads) for part in ("q", "v"))
        k = _split(g, g("MatMul", x, f"{layer}/k/w"), shape, heads)
        mixed = _attention(g, q, k, v, g.arrays[f"{layer}/q/w"].shape[1] // heads, shape)
        x = _layer_norm(g, f"{layer}/attention_norm", g("Add", x, _dense(g, f"{layer}/o", mixed)))
        hidden = g("Gelu", _dense(g, f"{layer}/up", x), domain="com.microsoft")
        x = _layer_norm(g, f"{layer}/ffn_norm", g("Add", x, _dense(g, f"{layer}/down", hidden)))
    return _dense(g, "head", g("Gather", x, g.constant(0), axis=1))


def _decoder(g: Graph, ids: str, shape: Sequence[int], heads: int) -> str:
    x = g("Gather", "tokens", ids)
    length, width = shape[1], g.arrays["tokens"].shape[1] // heads
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.concatenate([angles, angles], axis=-1).astype(np.float32)
    cos, sin = g.constant(np.cos(angles)), g.constant(np.sin(angles))
    mask = g.constant(np.where(np.tri(length, dtype=bool), 0.0, -1e9))

    def rotate(value: str) -> str:
        first = g("Slice", value, g.constant([0]), g.constant([width // 2]), g.constant([3]))
        second = g("Slice", value, g.constant([width // 2]), g.constant([width]), g.constant([3]))
        transposed = g("Concat", g("Neg", second), first, axis=3)
        return g("Add", g("Mul", value, cos), g("Mul", transposed, sin))

    for i in range(g.layers):
        layer = f"layers/{i}"
        y = _rms_norm(g, f"{layer}/attention_norm", x)
        q, k, v = (_split(g, g("MatMul", y, f"{layer}/{part}"), shape, heads) for part in ("q", "k", "v"))
        mixed = _attention(g, rotate(q), rotate(k), v, width, shape, mask)
        x = g("Add", x, g("MatMul", mixed, f"{layer}/o"))
        y = _rms_norm(g, f"{layer}/ffn_norm", x)
        gate = g("MatMul", y, f"{layer}/gate")
        gated = g("Mul", g("Mul", gate, g("Sigmoid", gate)), g("MatMul", y, f"{layer}/up"))
        x = g("Add", x, g("MatMul", gated, f"{layer}/down"))
    return g("MatMul", _rms_norm(g, "norm", x), "head")


def _split(g: Graph, x: str, shape: Sequence[int], heads: int) -> str:
    parted = g("Reshape", x, g.constant([*shape, heads, -1]))
    return g("Transpose", parted, perm=[0, 2, 1, 3])


def _attention(g: Graph, q: str, k: str, v: str, width: int, shape: Sequence[int], mask: str = "") -> str:
    scores = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g("Mul", scores, g.constant(width**-0.5))
    mixed = g("MatMul", g("Softmax", g("Add", scores, mask) if mask else scores, axis=-1), v)
    return g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([*shape, -1]))


def _dense(g: Graph, name: str, x: str) -> str:
    return g("Add", g("MatMul", x, f"{name}/w"), f"{name}/b")


def _layer_norm(g: Graph, name: str, x: str) -> str:
    # Its gradient reads the mean and the deviation, too.
    return g("LayerNormalization", x, f"{name}/gamma", f"{name}/beta", more=2, axis=-1, epsilon=EPSILON)


def _rms_norm(g: Graph, scale: str, x: str) -> str:
    mean = g("ReduceMean", g("Mul", x, x), axes=[-1], keepdims=1)
    return g("Mul", g("Div", x, g("Sqrt", g("Add", mean, g.constant(EPSILON)))), scale)


_NETS = {"mobilenetv2": _mobilenetv2, "resnet50": _resnet50, "encoder": _encoder, "decoder": _decoder}
