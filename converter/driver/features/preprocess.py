"""`preprocess`: the program converts phones' images, uint8 in NHWC, to the model's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from converter.backend.targets import Target
from converter.frontends.source import Source
from converter.ir import FLOAT32, Builder, Graph, Origin, TensorType, Value, ops
from converter.support.errors import UsageError, nearest
from converter.support.notes import Note

#: Means and deviations, of colours from 0 to 1, by the name of what a model was trained on.
_NAMED: dict[str, dict[str, Any]] = {
    "0..1": {},
    "-1..1": {"mean": 0.5, "std": 0.5},
    "0..255": {"scale": 1.0},
    "imagenet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
}
_ENTRIES = ("mean", "std", "scale", "order", "layout")
#: Numbers of channels that images have.
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Preprocessing:
    """What becomes of an image: (scale * pixel - mean) / std of each channel.

    Attributes:
        mean: of all channels, or of each.
        std: likewise.
        scale: what a number from 0 to 255 is multiplied by.
        order: of the channels of the model: `RGB`, as images come, or `BGR`.
        layout: of the model's input: `NCHW` or `NHWC`; None: the one whose channels are 1, 3 or 4.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255
    order: str = "RGB"
    layout: str | None = None


def check_preprocess(given: Any, target: Target) -> None:
    """Raise UsageError where `preprocess` is no description of images, or the target takes none of them."""
    if given is None:
        return
    for one in given.values() if _is_by_input(given) else [given]:
        _read(one)
    if not target.is_cpu:
        raise _wrong(f"{target.name} takes no uint8: make the image float32 before, or build for litert-2")


def preprocessed(source: Source, given: Any) -> Source:
    """Return a model that takes uint8 images [batch, height, width, channels] in place of its own inputs.

    Args:
        source: the model.
        given: one description for its only image, or a dict of them by input.

    Raises:
        UsageError: there is no such input, or it is no image.
    """
    if given is None:
        return source
    graph = source.graph
    chosen = dict(given) if _is_by_input(given) else {_only_image(graph): given}
    names = [value.name for value in graph.inputs]
    if unknown := [name for name in chosen if name not in names]:
        raise _wrong(f"the model has no input {unknown[0]!r}.{nearest(unknown[0], names)} It has {', '.join(names)}")
    b = Builder(graph.copy())
    b.graph.nodes, rest = [], b.graph.nodes
    made: dict[Value, Value] = {}
    inputs, notes = [], []
    for value in graph.inputs:
        if value.name not in chosen:
            inputs.append(value)
            continue
        how = _read(chosen[value.name])
        with b.at(Origin("preprocess")):
            image, made[value] = _from_image(b, value, how)
        inputs.append(image)
        notes.append(Note(value.name, "in the program", f"takes uint8 images {list(image.shape)}; {_said(how)}"))
    b.graph.inputs = inputs
    b.graph.nodes += [replace(n, inputs=tuple(made.get(v, v) for v in n.inputs)) for n in rest]
    b.graph.outputs = {name: made.get(v, v) for name, v in b.graph.outputs.items()}
    return replace(source, graph=b.graph, notes=[*source.notes, *notes])


def _from_image(b: Builder, taken: Value, how: Preprocessing) -> tuple[Value, Value]:
    """Return an input of pixels, and what the model takes, made of it."""
    channels = 1 if _layout(taken, how) == "NCHW" else 3
    rows, *places = (d for i, d in enumerate(taken.shape) if i != channels)
    count = taken.shape[channels]
    image = Value(TensorType((rows, *places, count), np.dtype(np.uint8)), taken.name)
    mean, std = (_of_each(numbers, count, taken.name) for numbers in (how.mean, how.std))
    x = b(ops.Cast(FLOAT32), image)
    if how.order == "BGR":
        x = b(ops.Reverse((3,)), x)
    x = b(ops.Add(), b(ops.Mul(), x, (how.scale / std).astype(np.float32)), (-mean / std).astype(np.float32))
    return image, b(ops.Transpose((0, 3, 1, 2)), x) if channels == 1 else x


def _of_each(numbers: Sequence[float], count: int, name: str) -> np.ndarray:
    if len(numbers) not in (1, count):
        raise _wrong(f"the input {name} has {count} channels, and mean or std has {len(numbers)} numbers")
    return np.broadcast_to(np.array(numbers, np.float64), (count,))


def _layout(value: Value, how: Preprocessing) -> str:
    shape = list(value.shape)
    if len(shape) != 4 or value.dtype != FLOAT32:
        raise _wrong(f"the input {value.name} is {value.type}, no image in float32 of four axes")
    if how.layout is not None:
        return how.layout
    fits = [name for name, axis in (("NCHW", 1), ("NHWC", 3)) if shape[axis] in _CHANNELS]
    if len(fits) != 1:
        raise _wrong(f"the input {value.name} {shape} may be NCHW or NHWC: say which, {{'layout': 'NCHW', ...}}")
    return fits[0]


def _only_image(graph: Graph) -> str:
    images = [value.name for value in graph.inputs if len(value.shape) == 4 and value.dtype == FLOAT32]
    if len(images) != 1:
        inputs = ", ".join(f"{value.name} {value.type}" for value in graph.inputs)
        raise _wrong(f"the model has {len(images)} images among its inputs ({inputs}): name them, {{'input': ...}}")
    return images[0]


def _is_by_input(given: Any) -> bool:
    return isinstance(given, Mapping) and bool(given) and not set(given) & set(_ENTRIES)


def _read(given: Any) -> Preprocessing:
    """Return what a name or a table says."""
    if isinstance(given, str):
        if given not in _NAMED:
            raise _wrong(f"unknown {given!r}.{nearest(given, _NAMED)} Known: {', '.join(_NAMED)}, or a table")
        given = _NAMED[given]
    if not isinstance(given, Mapping):
        raise _wrong(f"{given!r} is no name ({', '.join(_NAMED)}) and no table of {', '.join(_ENTRIES)}")
    if unknown := [name for name in given if name not in _ENTRIES]:
        raise _wrong(f"there is no {unknown[0]!r}.{nearest(str(unknown[0]), _ENTRIES)} Known: {', '.join(_ENTRIES)}")
    entries: dict[str, Any] = dict(given)
    for name in ("mean", "std"):
        if name in entries:
            entries[name] = _numbers(name, entries[name])
    if "scale" in entries:
        (entries["scale"],) = _numbers("scale", [entries["scale"]])
    for name, known in (("order", ("RGB", "BGR")), ("layout", ("NCHW", "NHWC"))):
        if name in entries and entries[name] not in known:
            raise _wrong(f"{name} is {' or '.join(known)}, not {entries[name]!r}")
    made = Preprocessing(**entries)
    if not all(made.std):
        raise _wrong("std is 0, by which nothing can be divided")
    return made


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    numbers = [given] if isinstance(given, int | float) else list(given) if isinstance(given, Sequence) else []
    good = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and isfinite(n)]
    if not good or len(good) != len(numbers):
        raise _wrong(f"{name} is a number, or a list of one for each channel, not {given!r}")
    return tuple(map(float, good))


def _said(how: Preprocessing) -> str:
    """The arithmetic, in words."""

    def words(numbers: Sequence[float]) -> str:
        return " ".join(f"{n:.4g}" for n in numbers)

    order = f", {how.order}" if how.order != "RGB" else ""
    return f"({how.scale:.4g} * pixel - {words(how.mean)}) / {words(how.std)}{order}"


def _wrong(what: str) -> UsageError:
    return UsageError(f"preprocess: {what}", page="arguments")
