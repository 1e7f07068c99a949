"""What can be asked of a build: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from converter.errors import UsageError, nearest
from converter.manifest import MAX_ELEMENTS
from converter.models import Source

#: Some forms have an operator for each row.
LARGEST_BATCH = 1 << 16
#: What a program may offer.
SIGNATURES = ("train", "evaluate", "infer", "features")


def whole_batch(rows: Any) -> int:
    """The rows of a step. Raises UsageError."""
    rows = _whole_number("batch", rows)
    if rows > LARGEST_BATCH:
        raise UsageError(f"batch: a step has at most {LARGEST_BATCH:,} rows, got {rows:,}")
    return rows


def part_of_batch(batch: int, rows: Any) -> int:
    """The rows of one call. Raises UsageError when a batch is not made of whole ones."""
    rows = batch if rows is None else _whole_number("micro_batch", rows)
    if batch % rows:
        divisors = ", ".join(str(n) for n in range(1, batch + 1) if not batch % n)
        raise UsageError(f"micro_batch {rows} does not divide the batch of {batch}: it can be {divisors}")
    return rows


def check_choice(name: str, value: Any, known: Sequence[str]) -> None:
    """Raises UsageError for an option that has no such value."""
    if value not in known:
        raise UsageError(f"unknown {name} {value!r}: it is {' or '.join(known)}")


def check_dropout(dropout: str, drops: bool, passes_accumulators: bool, frozen: str) -> None:
    """Raises UsageError for what dropout while training does not go together with, and where nothing is dropped."""
    if dropout == "train" and not drops:
        raise UsageError(
            "dropout='train': this model drops nothing that could be kept (Dropout and SpatialDropout layers of Keras, "
            "jax_frontend.dropout in JAX). Leave it out"
        )
    if dropout == "train" and passes_accumulators:
        raise UsageError(
            "dropout='train' counts micro-batches in a variable: leave state='stateless' or micro_batch out"
        )
    if dropout == "train" and frozen == "int8":
        raise UsageError("dropout='train' does not go together with frozen='int8': leave one out")


def check_signatures(signatures: Sequence[str]) -> None:
    """Raises UsageError for a signature that there is not, and without `train`."""
    for name in signatures:
        if name not in SIGNATURES:
            raise UsageError(f"unknown signature {name!r}.{nearest(name, SIGNATURES)} Known: {', '.join(SIGNATURES)}.")
    if "train" not in signatures:
        raise UsageError("the signature 'train' is missing: it is what the program is for")


def check_sizes(source: Source, rows: int) -> None:
    """Raises UsageError where an input or output has more numbers than a tensor of a program."""
    for value in (*source.graph.inputs, *source.graph.outputs.values()):
        if value.type.size > MAX_ELEMENTS:
            raise UsageError(
                f"{rows} rows at once are too many: {value.name or 'an output'} has {value.type.size:,} numbers, "
                f"and a tensor has at most {MAX_ELEMENTS:,}. Choose a smaller batch, or a micro_batch of it"
            )


def _whole_number(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{name} must be at least 1, a whole number; got {value!r}")
    return number
