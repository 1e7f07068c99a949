"""Contents of a TFLite file that may be trained: signatures, layers with shapes, and good places to cut it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from converter.frontends.tflite.head import place_of_last_layer, places_of
from converter.frontends.tflite.reading.file import File, FileTensor, read_file, reading, signatures_of
from converter.frontends.tflite.weights import WEIGHTS
from converter.support.errors import UsageError

#: Numbers of a row that make features, at least; and places of each kind that are shown, at most.
_LEAST_FEATURES, _MOST_PLACES = 8, 3


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: of the signature.
        kind: element type and shape, -1 for an open axis.
    """

    name: str
    kind: str


@dataclass(frozen=True)
class Layer:
    """Operators in a row whose tensors are called after one layer.

    Attributes:
        name: for `cut=`.
        operators: the builtins, in order.
        shape: of what the last one makes.
        weights: numbers in its kernels and biases.
    """

    name: str
    operators: tuple[str, ...]
    shape: tuple[int, ...]
    weights: int


@dataclass(frozen=True)
class Cut:
    """A good place to cut.

    Attributes:
        name: of the tensor, for `cut=`.
        shape: of it.
        why: what makes it one.
    """

    name: str
    shape: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Survey:
    """One signature of a file."""

    signature: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    cuts: tuple[Cut, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def survey(path: str | os.PathLike) -> list[Survey]:
    """Return what each signature of a file holds; nothing of it is run.

    Raises:
        UsageError: it cannot be read, is no TFLite file or is damaged.
    """
    names: list[str | None] = [*signatures_of(path)]
    with reading(os.fspath(path)):
        return [_of(read_file(path, name), name or "(none)") for name in names or [None]]


def _of(file: File, signature: str) -> Survey:
    inputs, outputs = (
        tuple(Tensor(name, _kind(file.tensors[number])) for name, number in named.items())
        for named in (file.inputs, file.outputs)
    )
    return Survey(signature, inputs, outputs, tuple(_layers(file)), tuple(_cuts(file)))


def _kind(tensor: FileTensor) -> str:
    return f"{tensor.kind.lower()}{list(tensor.signature)}"


def _layers(file: File) -> Iterator[Layer]:
    """Yield the layers, each operators that follow each other."""
    found: list[tuple[str, list[int]]] = []
    for place, operator in enumerate(file.operators):
        if operator.outputs:
            name = file.layer(operator.outputs[0])
            if not found or found[-1][0] != name:
                found.append((name, []))
            found[-1][1].append(place)
    for name, places in found:
        operators = [file.operators[place] for place in places]
        weights = {o.inputs[i] for o in operators for i in WEIGHTS.get(o.kind, {}) if i < len(o.inputs)} - {-1}
        held = (file.tensors[i] for i in weights)
        numbers = sum(prod(tensor.shape) for tensor in held if tensor.array is not None)
        shape = file.tensors[operators[-1].outputs[0]].shape
        yield Layer(name, tuple(o.kind for o in operators), shape, numbers)


def _cuts(file: File) -> list[Cut]:
    """Return places before the last layers: what they read, pooled features, and small maps late in the net."""
    found: dict[str, Cut] = {}
    for name, number in file.outputs.items():
        try:
            read = file.tensors[place_of_last_layer(file, number, name).features]
        except UsageError:
            continue
        found.setdefault(read.name, Cut(read.name, read.shape, f"what the last layer of {name} reads"))
    given = {file.tensors[number].name for number in file.outputs.values()}
    rows, maps = list[Cut](), list[Cut]()
    for operator in file.operators[len(file.operators) // 2 :]:
        for tensor in (file.tensors[number] for number in operator.outputs):
            if tensor.name in found or tensor.name in given:
                continue
            if len(tensor.shape) > 1 and tensor.shape[-1] == prod(tensor.shape) >= _LEAST_FEATURES:
                rows.append(Cut(tensor.name, tensor.shape, "one row of features"))
            elif len(tensor.shape) == 4 and tensor.shape[-1] >= _LEAST_FEATURES and "CONV" in operator.kind:
                pooled = (
                    f"a map late in the net; classes= reads the mean over its {places_of(tensor.shape) or 1} places"
                )
                maps.append(Cut(tensor.name, tensor.shape, pooled))
    smallest = sorted(maps, key=lambda cut: prod(cut.shape))[:_MOST_PLACES]
    return [*found.values(), *rows[-_MOST_PLACES:], *(cut for cut in maps if cut in smallest)]
