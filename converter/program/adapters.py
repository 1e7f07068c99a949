"""Low-rank adapters of a program: which weights have one, and how its factors are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from converter.program.file import ProgramFile
from converter.program.manifest import FROZEN
from converter.program.manifest.schema import check_shape
from converter.program.manifest.views import viewed_shape
from converter.program.parameters import parameters_of
from converter.support.errors import UsageError
from converter.support.records import decode

#: The metadata entry.
ADAPTERS = "pocketune.adapters"


@dataclass(frozen=True)
class LowRank:
    """An adapter: the weight W is used as W + scale * A B; with a magnitude (DoRA) its columns have these lengths.

    Attributes:
        weight, shape: of W as the model has it.
        a, b: names of the factors, [..., inputs, rank] and [..., rank, outputs].
        a_shape, b_shape: of these.
        product: the view from the model's layout to that of A B.
        scale: what A B is multiplied by.
        trains_a: whether A is a tensor of the state; else it stays as it was drawn, an entry of the metadata.
        magnitude: name of the lengths of the columns, [outputs], where they train.
        dropout: how likely an input of A is zero in a step.
    """

    weight: str
    shape: tuple[int, ...]
    a: str
    b: str
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    product: tuple[Any, ...]
    scale: float
    trains_a: bool
    magnitude: str | None
    dropout: float = 0.0


class Adapter(NamedTuple):
    """An adapter in a state.

    Attributes:
        a, b: its factors, [..., inputs, rank] and [..., rank, outputs].
        scale: what A B is multiplied by.
        change: scale * A B in the shape and layout of the weight, which it is added to.
        magnitude: the lengths that the columns of the sum have then, [outputs]; None but for DoRA.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float
    change: np.ndarray
    magnitude: np.ndarray | None


@dataclass(frozen=True)
class _Entry:
    """The entry."""

    weights: tuple[LowRank, ...]


def read_adapters(program: ProgramFile) -> tuple[LowRank, ...]:
    """Return the low-rank adapters of a program, in the order in which the model meets their weights.

    Raises:
        UsageError: the entry is senseless.
    """
    if ADAPTERS not in program.metadata:
        return ()
    try:
        entry = decode(_Entry, json.loads(bytes(program.metadata[ADAPTERS])), "adapters")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"its metadata entry {ADAPTERS!r} is not JSON ({error})", page="adapters") from None
    shapes: dict[str, tuple[int, ...]] = {p.name: p.shape for p in program.manifest.parameters}
    for adapter in entry.weights:
        where = f"adapters: {adapter.weight}"
        for shape in (adapter.shape, adapter.a_shape, adapter.b_shape):
            check_shape(where, shape)
        fits = viewed_shape(f"{where}: product", adapter.product, adapter.shape) == (
            *adapter.a_shape[:-1],
            adapter.b_shape[-1],
        )
        a = shapes.get(adapter.a) if adapter.trains_a else adapter.a_shape
        fits = fits and (adapter.magnitude is None or shapes.get(adapter.magnitude) == adapter.b_shape[-1:])
        if not fits or shapes.get(adapter.b) != adapter.b_shape or a != adapter.a_shape:
            raise UsageError(f"{where}: its factors do not fit the weight", page="adapters")
    return entry.weights


def factors(program: ProgramFile, state: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return A and B of each adapter in a state, by the name of its weight."""
    parameters = parameters_of(program, state)

    def first(adapter: LowRank) -> np.ndarray:
        if adapter.trains_a:
            return parameters[adapter.a]
        return program.entry(FROZEN + adapter.a, adapter.a_shape)

    return {one.weight: (first(one), parameters[one.b]) for one in read_adapters(program)}


def adapters_of(program: ProgramFile, state: Mapping[str, np.ndarray]) -> dict[str, Adapter]:
    """Return the low-rank adapters of a state by the names of the weights that they change."""
    from converter.ir.view import View

    found, lengths, made = factors(program, state), magnitudes(program, state), {}
    for one in read_adapters(program):
        a, b = found[one.weight]
        change = np.zeros(one.shape, np.float32)
        View(one.product).scatter(change, one.scale * np.matmul(a, b, dtype=np.float64))
        made[one.weight] = Adapter(a, b, one.scale, change, lengths.get(one.weight))
    return made


def magnitudes(program: ProgramFile, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the lengths of columns of each adapter in a state that has them, by the name of its weight."""
    parameters = parameters_of(program, state)
    return {one.weight: parameters[one.magnitude] for one in read_adapters(program) if one.magnitude is not None}
