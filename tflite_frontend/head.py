"""Fresh last layers: what of a file a new dense layer stands behind, and the layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from converter.ir import Value, ops
from converter.support.errors import UsageError
from tflite_frontend.file import File, FileOperator, layer_of
from tflite_frontend.importer import Importer

#: What may stand between the last layer and the output.
_BEHIND = ("SOFTMAX", "LOGISTIC", "RESHAPE", "SQUEEZE", "LOG_SOFTMAX")
_LINKS = ("SOFTMAX", "LOGISTIC", "LOG_SOFTMAX")


@dataclass(frozen=True)
class Place:
    """Where a fresh layer stands.

    Attributes:
        features: the tensor that it reads.
        replaced: the layer that stood there, in words.
        link: the builtin that the file puts behind that layer; empty for none.
        at_each: whether the layer stood at each place of a map or sequence, and the fresh one does.
    """

    features: int
    replaced: str
    link: str
    at_each: bool = True


def place_of_last_layer(file: File, output: int, name: str) -> Place:
    """Return the place of the dense layer or 1x1 convolution that makes an output.

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
            f"{what}. Say behind which tensor or layer the new one is to stand: cut={name!r}, behind the output",
            page="tflite-files",
        )
    return Place(dense[0], layer_of(file.tensors[dense[1]].name), link)


def fresh_layer(importer: Importer, place: Place, classes: int, seed: int) -> Value:
    """Return the outputs of a fresh layer: weights after Glorot, biases 0.

    [B, classes]; or [B, ..., classes] where the file has its layer at each place of a map or sequence.
    """
    b, features = importer.b, importer.value(place.features)
    around = features.shape[1:-1] if place.at_each else ()
    if place.at_each and features.shape[0] != importer.rows:  # rows and places of a sequence in one axis
        around = (features.shape[0] // importer.rows, *around)
    around = () if prod(around) == 1 else around
    width = features.type.size // (importer.rows * prod(around))
    limit = np.sqrt(6 / (width + classes))
    kernel = np.random.default_rng(seed).uniform(-limit, limit, (classes, width))
    w = importer.parameter("head/kernel", kernel)
    logits = b(ops.MatMul(adj_y=True), b.reshape(features, (importer.rows * prod(around), width)), w)
    logits = b(ops.Add(), logits, importer.parameter("head/bias", np.zeros(classes)))
    logits = b.reshape(logits, (importer.rows, *around, classes))
    if classes == 1:
        return b(ops.Logistic(), logits)
    return b(ops.Softmax(), logits) if place.link else logits


def _dense(file: File, makers: Mapping[int, FileOperator], number: int) -> tuple[int, int] | None:
    """Return what a dense layer that makes a tensor reads, and its weights; None where none makes it."""
    maker = makers.get(number)
    if maker is not None and maker.kind == "ADD":  # a bias
        maker = next((makers[i] for i in maker.inputs if i in makers), None)
        if maker is not None and maker.kind == "TRANSPOSE":  # of one row it costs nothing to have it turned
            maker = makers.get(maker.inputs[0])
        if maker is not None and maker.kind != "BATCH_MATMUL":
            return None
    if maker is None or not _is_dense(file, maker):
        return None
    weights = 1 if file.tensors[maker.inputs[1]].array is not None or maker.kind != "BATCH_MATMUL" else 0
    return maker.inputs[1 - weights], maker.inputs[weights]


def _is_dense(file: File, operator: FileOperator) -> bool:
    if operator.kind == "BATCH_MATMUL":
        return any(file.tensors[i].array is not None for i in operator.inputs)
    if operator.kind == "CONV_2D":
        return file.tensors[operator.inputs[1]].shape[1:3] == (1, 1)
    return operator.kind == "FULLY_CONNECTED"
