"""Adapters merged into the weights that they change, with the tensors of a state.

The plain model that is exported of a program with adapters has none; the metadata entry `pocketune.merge` says how the
weights that it has instead are made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from converter.ir.view import View
from converter.program.adapters import factors, read_adapters
from converter.program.file import ProgramFile
from converter.program.manifest import FROZEN, Manifest
from converter.program.manifest.schema import check_shape
from converter.program.manifest.views import viewed_shape
from converter.program.parameters import parameters_of
from converter.support.errors import UsageError
from converter.support.records import decode

#: The metadata entry.
MERGE = "pocketune.merge"
#: Squared, the least length that a column is divided by: rounding may leave less than nothing of one that vanishes.
LEAST = 1e-30


@dataclass(frozen=True)
class MergedWeight:
    """A weight W of the model, frozen in training, that becomes W + scale * A B, or W with B added to chosen channels.

    With a magnitude (DoRA) the columns of that have its lengths.

    Attributes:
        name, shape: of W as the model has it.
        stored: its shape as the plain model has it; its frozen value is an entry of the metadata, or where its
            channels are redrawn a parameter of the program.
        view: from the model's layout to the stored one.
        a, b: names of the factors, parameters of the program; A may be an entry of the metadata instead, frozen. None
            for a weight whose channels are chosen: the manifest says which tensor of the state holds them.
        a_shape: of A.
        product: the view from the model's layout to that of A B.
        scale: what A B is multiplied by.
        magnitude: name of the lengths of the columns, where they train.
    """

    name: str
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    view: tuple[Any, ...]
    a: str | None
    b: str
    a_shape: tuple[int, ...] | None
    product: tuple[Any, ...]
    scale: float
    magnitude: str | None


@dataclass(frozen=True)
class Merge:
    """The entry."""

    weights: tuple[MergedWeight, ...]


def read_merge(program: ProgramFile) -> Merge | None:
    """Return what is to be merged in a program; None where it has no adapters.

    Raises UsageError for a senseless entry.
    """
    if MERGE not in program.metadata:
        return None
    try:
        merge = decode(Merge, json.loads(bytes(program.metadata[MERGE])), "merge")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"its metadata entry {MERGE!r} is not JSON ({error})", page="adapters") from None
    for weight in merge.weights:
        _check(weight, program.manifest)
    return merge


def _check(weight: MergedWeight, manifest: Manifest) -> None:
    """Raises UsageError unless the shapes fit each other."""
    where = f"merge: {weight.name}"
    shapes: dict[str, tuple[int, ...]] = {p.name: p.shape for p in manifest.parameters}
    for shape in (weight.shape, weight.stored, *(() if weight.a_shape is None else (weight.a_shape,))):
        check_shape(where, shape)
    b = shapes.get(weight.b, ())
    stored = viewed_shape(f"{where}: view", weight.view, weight.shape)
    product = viewed_shape(f"{where}: product", weight.product, weight.shape)
    a = shapes.get(weight.a or "", weight.a_shape or ())
    if (choice := manifest.choice_of(weight.name)) is not None:  # as if A picked the channels
        a = *b[:-2], choice.channels, manifest.trained_channels(choice)
    fits = len(b) >= 2 and len(a) >= 2 and a[-1] == b[-2] and product == (*a[:-1], b[-1])
    fits = fits and (weight.magnitude is None or (weight.a is not None and shapes.get(weight.magnitude) == b[-1:]))
    if not fits or prod(stored) != prod(weight.stored):
        raise UsageError(
            f"{where}: {list(a)} by {list(b)} is not what is added to {list(weight.shape)}", page="adapters"
        )


def merged_weights(program: ProgramFile, merge: Merge, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights with their adapters merged, by the model's own names, in its own layout."""
    parameters = parameters_of(program, state)
    merged = {}
    for weight in merge.weights:
        if weight.name in program.manifest.redrawn:
            whole = parameters[weight.name].copy()
        else:
            whole = np.empty(weight.shape, np.float32)
            View(weight.view).scatter(whole, program.entry(FROZEN + weight.name, weight.stored))
        product, b = View(weight.product), parameters[weight.b]
        if (choice := program.manifest.choice_of(weight.name)) is not None:
            add_to_channels(whole, product, state[choice.indices], b)
        changed = product.apply(whole).copy()
        if weight.a is not None and weight.a_shape is not None:
            a = parameters.get(weight.a)
            if a is None:
                a = program.entry(FROZEN + weight.a, weight.a_shape)
            changed = changed + weight.scale * np.matmul(a, b, dtype=np.float64)
        if weight.magnitude is not None:
            changed = changed * (parameters[weight.magnitude] / lengths(changed))
        product.scatter(whole, changed)
        merged[weight.name] = whole
    return merged


def add_to_channels(whole: np.ndarray, product: View, channels: np.ndarray, change: np.ndarray) -> None:
    """Adds to some input channels of a weight, in place.

    Args:
        whole: contiguous, in its own layout.
        product: the view from that to [..., inputs, outputs].
        channels: places of the inputs, each once.
        change: [..., channels, outputs].
    """
    changed = product.apply(whole).copy()
    changed.swapaxes(0, -2)[channels] += change.swapaxes(0, -2)
    product.scatter(whole, changed)


def weights_of_model(program: ProgramFile, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights that train, by the model's own names, in its own layout and full shape; adapters are merged.

    Where frozen weights are stored in fewer bits, or no model is exported, there is nothing to merge adapters into:
    they stay weights of their own.
    """
    weights, merge = parameters_of(program, state), read_merge(program)
    if merge is not None:
        factors = {name for weight in merge.weights for name in (weight.a, weight.b, weight.magnitude)}
        weights = {name: array for name, array in weights.items() if name not in factors}
        weights |= merged_weights(program, merge, state)
    return weights


def weights_on(
    base: Mapping[str, np.ndarray], program: ProgramFile, state: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the same with adapters merged into other weights than those of the program.

    Raises:
        UsageError: `base` has not the weights that the adapters change, or the program does not say how chosen channels
            lie in them.
    """
    parameters, low_rank = parameters_of(program, state), read_adapters(program)
    merged, found = _chosen_on(base, program, state, parameters), factors(program, state)
    for one in low_rank:
        whole = _based(base, one.weight, one.shape)
        product, (a, b) = View(one.product), found[one.weight]
        changed = product.apply(whole) + one.scale * np.matmul(a, b, dtype=np.float64)
        if one.magnitude is not None:
            changed = changed * (parameters[one.magnitude] / lengths(changed))
        product.scatter(whole, changed)
        merged[one.weight] = whole
    gone = {name for one in low_rank for name in (one.a, one.b, one.magnitude)}
    gone |= {choice.change for choice in program.manifest.choices}
    return {name: array for name, array in parameters.items() if name not in gone} | merged


def _based(base: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a copy of a weight of the base. Raises UsageError where there is none of this shape."""
    whole = np.array(base[name], np.float32) if name in base else np.empty(0)
    if whole.shape != shape:
        raise UsageError(f"base: it has no {name} of the shape {list(shape)}", page="adapters")
    return whole


def _chosen_on(
    base: Mapping[str, np.ndarray],
    program: ProgramFile,
    state: Mapping[str, np.ndarray],
    parameters: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the weights of which channels train, with what was added; those that are state are in no base."""
    merge, found = read_merge(program), dict[str, np.ndarray]()
    known = {} if merge is None else {weight.name: weight for weight in merge.weights}
    for choice in program.manifest.choices:
        name, product = choice.weight, choice.product
        if product is not None:
            whole = parameters[name].copy()
        elif name in known:
            whole, product = _based(base, name, known[name].shape), known[name].product
        else:
            raise UsageError(
                f"base: {program.manifest.name} does not say how the channels of {name} lie in it: build it with the "
                "signature 'infer', and with frozen layers in float32",
                page="adapters",
            )
        add_to_channels(whole, View.from_json(list(product)), state[choice.indices], parameters[choice.change])
        found[name] = whole
    return found


def check_merges(program: ProgramFile) -> None:
    """Raise UsageError where a program has adapters that cannot be merged into the weights that they change."""
    if MERGE in program.metadata or not (read_adapters(program) or program.manifest.choices):
        return
    if "infer" not in program.manifest.calls:
        why = "has no signature 'infer', and so not the frozen weights that its adapters change: build it with one"
    else:
        why = (
            "holds its frozen weights in fewer bits than the model (frozen='int4', 'float16'), which no weight with an "
            "adapter in it is: merge them into the module's own, session.state_dict(base=module.state_dict()), or "
            "export them for PEFT (pocketune export --out adapter/)"
        )
    raise UsageError(f"{program.manifest.name} {why}", page="adapters")


def lengths(weight: np.ndarray) -> np.ndarray:
    """Return the lengths of the columns of a weight [..., outputs], none of them 0, float64."""
    squares = np.square(weight, dtype=np.float64).sum(tuple(range(weight.ndim - 1)))
    return np.sqrt(np.maximum(squares, LEAST))


def stored_weights(program: ProgramFile, merge: Merge, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same as the plain model has them."""
    merged = merged_weights(program, merge, state)
    return {w.name: View(w.view).apply(merged[w.name]).reshape(w.stored) for w in merge.weights}
