"""A TFLite file as a model: which part of it, for which shapes, and what stands in the place of its head."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from converter.ir import Graph, Value, ops, verify
from converter.passes.idioms import with_idioms
from converter.support.errors import UnsupportedError, UsageError, nearest
from converter.support.notes import Note
from converter.training.batch_dependence import mixing
from tflite_frontend.file import File, FileOperator, layer_of, read_file
from tflite_frontend.importer import Importer
from tflite_frontend.registry import NotImportable

#: What may stand between the last layer and the output.
_BEHIND = ("SOFTMAX", "LOGISTIC", "RESHAPE", "SQUEEZE", "LOG_SOFTMAX")


def is_tflite(model: Any) -> bool:
    """Return whether something is the path of a TFLite file."""
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".tflite")


@dataclass(frozen=True)
class Model:
    """A TFLite file that is to be trained.

    Attributes:
        path: of the file.
        signature: which of its signatures; None: the only one.
        shapes: of inputs by name, for one row, where the file leaves axes open.
        cut: the name of a tensor or layer; what stands behind it is left out.
        classes: a fresh dense layer of so many classes stands in the place of the last one, or behind `cut`.
        outputs: the names of the outputs that are kept; None: all.
        seed: of the fresh layer.
    """

    path: str | os.PathLike
    signature: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cut: str | None = None
    classes: int | None = None
    outputs: Sequence[str] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.classes is not None and not (isinstance(self.classes, int) and self.classes > 0):
            raise UsageError(f"classes must be a whole number of at least 1, got {self.classes!r}", page="tflite-files")

    @property
    def name(self) -> str:
        """What programs of it are called."""
        return Path(self.path).stem

    def graph(self, rows: int) -> tuple[Graph, list[Note]]:
        """Return the forward graph for a number of rows, and what to say of it.

        Raises:
            UsageError: the file cannot be read, or has no such tensor, layer, signature or last layer.
            UnsupportedError: it holds what cannot be imported.
        """
        file = read_file(self.path, self.signature)
        try:
            return self._imported(file, rows)
        except NotImportable as problem:  # an output that is no result of an operator
            raise UnsupportedError(f"{file.path}: {problem.what}", page="tflite-files") from None

    def _imported(self, file: File, rows: int) -> tuple[Graph, list[Note]]:
        importer = Importer(file, rows, self.shapes)
        notes: list[Note] = []
        if self.classes is not None:
            features, kept, behind = self._features(file)
            importer.run([features])
            output = _head(importer, importer.value(features), self.classes, behind, self.seed)
            importer.b.graph.outputs = {"output": output}
            said = f"a fresh dense layer of {self.classes} classes{' behind softmax' if self.classes > 1 else ''}"
            notes.append(Note("head", "fresh", f"{said}, in the place of {kept}"))
        elif self.cut is not None:
            number = _tensor(file, self.cut)
            importer.run([number])
            importer.b.graph.outputs = {"output": importer.value(number)}
        else:
            chosen = self._outputs(file)
            importer.run(list(chosen.values()))
            names = ["output"] if len(chosen) == 1 else list(chosen)
            importer.b.graph.outputs = {n: importer.value(i) for n, i in zip(names, chosen.values(), strict=True)}
        graph = importer.b.graph
        _check_rows(graph, rows, file)
        read = {v for node in graph.nodes for v in node.inputs}
        graph.parameters = {v: p for v, p in graph.parameters.items() if v in read}
        return with_idioms(verify(graph, "import")), notes

    def _outputs(self, file: File) -> dict[str, int]:
        if self.outputs is None:
            return dict(file.outputs)
        for name in self.outputs:
            if name not in file.outputs:
                raise UsageError(
                    f"{file.path} has no output {name!r}.{nearest(name, file.outputs)} It has "
                    f"{', '.join(file.outputs)}",
                    page="tflite-files",
                )
        return {name: file.outputs[name] for name in self.outputs}

    def _features(self, file: File) -> tuple[int, str, str]:
        """Return the tensor behind which the fresh layer stands, what it replaces, and the activation of that."""
        if self.cut is not None:
            return _tensor(file, self.cut), f"what stood behind {self.cut}", "SOFTMAX"
        makers = {number: operator for operator in file.operators for number in operator.outputs}
        number, behind = next(iter(self._outputs(file).values())), ""
        while (maker := makers.get(number)) is not None and maker.kind in _BEHIND:
            behind = maker.kind if maker.kind in ("SOFTMAX", "LOGISTIC", "LOG_SOFTMAX") else behind
            number = maker.inputs[0]
        dense = _dense(file, makers, number)
        if dense is None:
            what, output = "an input" if maker is None else maker.kind, next(iter(self._outputs(file)))
            raise UsageError(
                f"{file.path} does not end in a dense layer or a 1x1 convolution, which classes= replaces, but in "
                f"{what}. Say behind which tensor or layer the new one is to stand: cut={output!r}, behind the output",
                page="tflite-files",
            )
        return dense[0], layer_of(file.tensors[dense[1]].name), behind


def _dense(file: File, makers: Mapping[int, FileOperator], number: int) -> tuple[int, int] | None:
    """Return what a dense layer that makes a tensor reads, and its weights; None where none makes it."""
    maker = makers.get(number)
    if maker is not None and maker.kind == "ADD":  # a bias
        maker = next((makers[i] for i in maker.inputs if i in makers), None)
        if (
            maker is not None and maker.kind == "TRANSPOSE"
        ):  # of one row it costs nothing to have it the other way round
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


def _head(importer: Importer, features: Value, classes: int, behind: str, seed: int) -> Value:
    """Return the outputs [B, classes] of a fresh layer: weights after Glorot, biases 0."""
    b, rows = importer.b, features.shape[0]
    width = prod(features.shape[1:])
    limit = np.sqrt(6 / (width + classes))
    kernel = np.random.default_rng(seed).uniform(-limit, limit, (classes, width))
    w = importer.parameter("head/kernel", kernel)
    logits = b(ops.MatMul(adj_y=True), b.reshape(features, (rows, width)), w)
    logits = b(ops.Add(), logits, importer.parameter("head/bias", np.zeros(classes)))
    if classes == 1:
        return b(ops.Logistic(), logits)
    return b(ops.Softmax(), logits) if behind else logits


def _tensor(file: File, name: str) -> int:
    """Return the tensor of a name, or what the last operator of a layer makes."""
    computed = {number: operator for operator in file.operators for number in operator.outputs}
    by_name = {file.tensors[number].name: number for number in computed}
    if name in file.outputs:
        return file.outputs[name]
    if name in by_name:
        return by_name[name]
    of_layer = [number for number in computed if layer_of(file.tensors[number].name) == name.strip("/")]
    if of_layer:
        return of_layer[-1]
    layers = {layer_of(file.tensors[number].name) for number in computed}
    raise UsageError(
        f"{file.path} has no tensor or layer {name!r}.{nearest(name, [*by_name, *layers])}", page="tflite-files"
    )


def _check_rows(graph: Graph, rows: int, file: File) -> None:
    """Raise UsageError where rows are not apart: a file for one row may hold it in places where several do not fit."""
    advice = "the file mixes its rows, or is for one at a time. Train with batch=1, or cut= before that"
    if rows > 1 and (place := mixing(graph, graph.outputs.values())) is not None:
        raise UsageError(f"{file.path}: {place}: {advice}", page="tflite-files")
    for name, value in graph.outputs.items():
        if not value.shape or value.shape[0] != rows:
            raise UsageError(
                f"{file.path}: {name} has {list(value.shape)} for {rows} rows: {advice}", page="tflite-files"
            )
