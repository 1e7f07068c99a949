"""New last layers: the tensor of a file that a new dense layer or a user's head reads, and the layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import numpy as np

from converter.frontends.tflite.folding import checked_size
from converter.frontends.tflite.importer import Importer
from converter.frontends.tflite.reading.file import File, FileOperator
from converter.ir import Graph, Shape, TensorType, Value, ops
from converter.support.errors import UsageError

#: What may stand between the last layer and the output.
_BEHIND = ("SOFTMAX", "LOGISTIC", "RESHAPE", "SQUEEZE", "LOG_SOFTMAX", "QUANTIZE", "DEQUANTIZE")
_LINKS = ("SOFTMAX", "LOGISTIC", "LOG_SOFTMAX")


@dataclass(frozen=True)
class Place:
    """Where a fresh layer stands.

    Attributes:
        features: the tensor that it reads.
        replaced: the layer that stood there, in words.
        link: the builtin that the file puts after that layer; empty for none.
        width: how many numbers it reads at each place of a map or sequence; None: all that there are of a row.
        pools: whether it reads the mean over all places of a map or sequence.
    """

    features: int
    replaced: str
    link: str
    width: int | None = None
    pools: bool = False


class Head(Protocol):
    """A head of one's own, as a graph for whatever it reads."""

    def graph(self, features: TensorType) -> Graph:
        """Return its forward graph: one input of that type, one output."""


def own_head(importer: Importer, features: Value, head: Head) -> Value:
    """Return what a head of one's own makes of a tensor.

    Raises:
        UsageError: it has another number of inputs or outputs, takes another shape, or parameters of names that the
            file has.
    """
    graph, whole = head.graph(features.type), importer.b.graph
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise UsageError(
            f"the head takes {len(graph.inputs)} inputs and gives {len(graph.outputs)} outputs: it must read one "
            "tensor and return one",
            page="tflite-files",
        )
    (given,) = graph.inputs
    if given.shape != features.shape:
        raise UsageError(
            f"the head takes {list(given.shape)}, and the tensor that it reads is {list(features.shape)}",
            page="tflite-files",
        )
    bound = {given: features}
    if taken := {p.name for p in graph.parameters.values()} & {p.name for p in whole.parameters.values()}:
        raise UsageError(
            f"the head and the file both have a parameter {min(taken)!r}: give the head's another name",
            page="tflite-files",
        )
    whole.constants |= graph.constants
    whole.parameters |= graph.parameters
    for node in graph.nodes:
        whole.nodes.append(replace(node, inputs=tuple(bound.get(v, v) for v in node.inputs)))
    (made,) = graph.outputs.values()
    return bound.get(made, made)


def place_of_last_layer(file: File, output: int, name: str) -> Place:
    """Return the place of the dense layer that makes an output, or of a convolution that is one.

    Raises:
        UsageError: something else makes it.
    """
    makers = {number: operator for operator in file.operators for number in operator.outputs}
    number, link = output, ""
    while (maker := makers.get(number)) is not None and maker.kind in _BEHIND:
        link = maker.kind if maker.kind in _LINKS else link
        number = maker.inputs[0]
    dense = _dense(file, makers, number)
    if dense is None:
        what = "an input" if maker is None else maker.kind
        raise UsageError(
            f"{file.path} does not end in a dense layer or a 1x1 convolution, which classes= replaces, but in "
            f"{what}. Name the tensor or layer that the new layer is to follow: cut={name!r}, the output",
            page="tflite-files",
        )
    features, weights, width = dense
    return Place(features, file.layer(weights), link, width)


def places_of(shape: Shape) -> str:
    """Return the places of a map or sequence [B, ..., C] in words, `48 x 48`; empty where a row is one of features."""
    return " x ".join(map(str, shape[1:-1])) if prod(shape[1:-1]) > 1 else ""


def fresh_layer(importer: Importer, place: Place, classes: int, seed: int) -> Value:
    """Return the outputs of a fresh layer: weights after Glorot, biases 0.

    [B, classes]; or [B, ..., classes] where the file has its layer at each place of a map or sequence.
    """
    b, features, rows = importer.b, importer.value(place.features), importer.rows
    if place.pools and places_of(features.shape):
        features = b(ops.Mean(tuple(range(1, features.type.rank - 1))), features)
    width = features.type.size // rows if place.width is None else place.width
    around = (*features.shape[1:-1],) if features.shape[0] == rows and features.shape[-1] == width else ()
    if rows * prod(around) * width != features.type.size:  # places of a sequence may be rows in the file
        around = (features.type.size // (rows * width),)
    around = () if prod(around) == 1 else around
    limit = np.sqrt(6 / (width + classes))
    checked_size(b, f"a fresh layer of {classes} classes", classes * width)
    kernel = np.random.default_rng(seed).uniform(-limit, limit, (classes, width))
    w = importer.parameter("head/kernel", kernel)
    logits = b(ops.MatMul(adj_y=True), b.reshape(features, (rows * prod(around), width)), w)
    logits = b(ops.Add(), logits, importer.parameter("head/bias", np.zeros(classes)))
    logits = b.reshape(logits, (rows, *around, classes))
    if classes == 1:
        return b(ops.Logistic(), logits)
    return b(ops.Softmax(), logits) if place.link else logits


def _dense(file: File, makers: Mapping[int, FileOperator], number: int) -> tuple[int, int, int | None] | None:
    """Return what a dense layer that makes a tensor reads, its weights and its width; None where none makes it."""
    maker = makers.get(number)
    if maker is not None and maker.kind == "ADD":  # a bias
        maker = next((makers[i] for i in maker.inputs if i in makers), None)
        if maker is not None and maker.kind == "TRANSPOSE":  # of one row it costs nothing to have it transposed
            maker = makers.get(maker.inputs[0])
        if maker is not None and maker.kind != "BATCH_MATMUL":
            return None
    if maker is None:
        return None
    if maker.kind not in ("BATCH_MATMUL", "CONV_2D", "FULLY_CONNECTED"):
        return None
    x, w = maker.inputs[:2]
    if maker.kind == "BATCH_MATMUL":
        x, w = (x, w) if file.tensors[w].array is not None else (w, x)
        return None if file.tensors[w].array is None else (x, w, None)
    if maker.kind == "FULLY_CONNECTED":
        return x, w, file.tensors[w].shape[-1]
    if _is_dense(file, maker):
        is_point = file.tensors[w].shape[1:3] == (1, 1)
        return x, w, file.tensors[w].shape[3] if is_point else None
    return None


def _is_dense(file: File, convolution: FileOperator) -> bool:
    """Return whether a convolution is a dense layer, at each place or of all that it is given."""
    x, w = (file.tensors[i].shape for i in convolution.inputs[:2])
    whole = w[1:3] == x[1:3] and file.tensors[convolution.outputs[0]].shape[1:3] == (1, 1)
    return w[1:3] == (1, 1) or whole
