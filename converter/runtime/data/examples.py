"""Input checks: the user's arguments, checked once, with plain messages, before they reach the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from converter.program.manifest import TARGET, Signature, TensorSpec
from converter.runtime.interpreters.entry import SignatureEntry
from converter.support.errors import UsageError, nearest

#: Of inputs of few bits, which a quantised file has.
_STANDS_FOR = (
    "Its integers stand for real numbers: feed round(real / scale) + zero point, whose numbers the build's notes say"
)
#: Of labels where the loss compares numbers.
_OF_LABELS = " A loss of labels by name is loss='sparse_categorical_crossentropy'."


@dataclass(frozen=True)
class Examples:
    """Checked rows: arrays by the name of the input, each of its dtype, all of the same first axis."""

    arrays: dict[str, np.ndarray]

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def weight(self) -> float:
        """The sum of the weights of the rows."""
        return float(self.arrays["weight"].sum())

    def take(self, rows: slice | np.ndarray) -> Examples:
        """Return some of the rows."""
        return Examples({name: array[rows] for name, array in self.arrays.items()})

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        """Return the rows of all parts, one after the other."""
        return Examples({name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays})

    def parts(self, size: int) -> list[Examples]:
        """Return the rows in pieces of `size`, the last one shorter, without pieces that weigh nothing."""
        pieces = [self.take(slice(start, start + size)) for start in range(0, self.rows, size)]
        return [piece for piece in pieces if piece.weight]

    def as_shares(self) -> Examples:
        """Return the same rows with their shares of the weight of all of them."""
        weight = self.arrays["weight"].astype(np.float64)
        return Examples(self.arrays | {"weight": (weight / weight.sum()).astype(np.float32)})

    def fill(self, entry: SignatureEntry) -> None:
        """Writes the rows, at most a batch, into the inputs of a signature.

        A short batch repeats its first row: a row that the model is known to take, unlike zeros. Its weight is zero.
        """
        for spec in entry.signature.inputs:
            if (array := self.arrays.get(spec.name)) is not None:
                if missing := spec.shape[0] - len(array):
                    row = np.zeros_like(array[:1]) if spec.name == "weight" else array[:1]
                    array = np.concatenate([array, np.repeat(row, missing, axis=0)])
                entry.write(spec.name, array)


def check_examples(signature: Signature, x: Any, y: Any = None, weight: Any = None) -> Examples:
    """Return the rows for a signature.

    Args:
        signature: what is about to be called; takes no y and weight when it has no such input.
        x: one array, or for several inputs a sequence or a dict of arrays; first axis the rows.
        y: targets of the rows; for several a sequence or a dict.
        weight: weight of each row; None gives each row the weight 1.

    Raises:
        UsageError: a wrong shape, dtype, number of rows or value; it says which input and what was expected.
    """
    arrays = {spec.name: _checked(spec, value) for spec, value in _by_name("x", signature.taking("input"), x)}
    if targets := signature.taking("target"):
        arrays |= {spec.name: _checked(spec, value) for spec, value in _by_name("y", targets, y)}
    elif y is not None and not (isinstance(y, Mapping) and not y) and signature.taking("weight"):
        raise UsageError(
            "y: the loss of this program compares the model's outputs with each other and takes no y", page="sessions"
        )
    if isinstance(weight, Mapping):
        raise UsageError(
            f"weight: one number a row, which counts for all outputs, and not a dict ({', '.join(map(str, weight))}): "
            "what an output counts is said by loss_weights when it is built",
            page="sessions",
        )
    first, rows = next((name, len(array)) for name, array in arrays.items())
    for spec in signature.taking("weight"):
        arrays[spec.name] = np.ones(rows, np.float32) if weight is None else _checked(spec, weight)
        if arrays[spec.name].min() < 0:
            raise UsageError(f"{spec.name}: a weight is below zero", page="sessions")
    for name, array in arrays.items():
        if len(array) != rows:
            raise UsageError(
                f"{first} has {rows} rows and {name} has {len(array)}: each row of one belongs to a row of the other",
                page="sessions",
            )
    return Examples(arrays)


def check_whole(name: str, signature: Signature, rows: int) -> None:
    """Raises UsageError for a short batch where the rows that would fill it change what the others give."""
    size = signature.inputs[0].shape[0]
    if signature.mixing is not None and rows % size:
        raise UsageError(
            f"{name}: rows of a batch influence each other in this program ({signature.mixing}), so it takes whole "
            f"batches of {size}, and {rows} rows cannot be filled up: pass a multiple of {size} (fit leaves rows of "
            f"weight 0 out), or build with a batch that divides {rows}",
            page="sessions",
        )


def finite_number(name: str, number: Any) -> float:
    """Return a number that a user gave. Raises UsageError for anything else."""
    try:
        if isinstance(number, bool | np.bool_):
            raise TypeError
        value = float(number)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be a number, got {number!r}", page="sessions") from None
    if not isfinite(value):
        raise UsageError(f"{name} must be finite, got {value}", page="sessions")
    return value


def _by_name(what: str, specs: tuple[TensorSpec, ...], given: Any) -> list[tuple[TensorSpec, Any]]:
    """Return each input of the model, or each target, with what the user gives for it."""
    names = [spec.label for spec in specs]
    kind, has = ("input", "the model has") if what == "x" else ("target", "the program takes")
    listed = ", ".join(names)
    if isinstance(given, Mapping):
        if names == [TARGET] and TARGET not in given:
            raise UsageError(f"{what}: {has} one {kind}, not a dict of them: pass its array", page="sessions")
        for name in given:
            if name not in names:
                none = "; an output without a loss has none" if what == "y" else ""
                raise UsageError(
                    f"{what}: {has} no {kind} {name!r}.{nearest(str(name), names)} It has {listed}{none}.",
                    page="sessions",
                )
        if missing := [name for name in names if name not in given]:
            wanted = f"{has.capitalize()} {_sized(specs)}; {_came(given)} came"
            raise UsageError(f"{what}: the {kind} {missing[0]} is missing. {wanted}", page="sessions")
        return [(spec, given[spec.label]) for spec in specs]
    if len(specs) == 1:
        return [(specs[0], given)]
    if given is None:
        raise UsageError(f"{what}: missing; pass a tuple or a dict with {listed}", page="sessions")
    if not isinstance(given, list | tuple) or len(given) != len(specs):
        raise UsageError(f"{what}: {has} {len(specs)} {kind}s: pass a tuple or a dict with {listed}", page="sessions")
    return list(zip(specs, given, strict=True))


def _checked(spec: TensorSpec, value: Any) -> np.ndarray:
    """Return the array of an input: [rows, ...], of its dtype, finite. No copy when it is so already."""
    expected = f"{spec.dtype} [rows{''.join(f', {d}' for d in spec.shape[1:])}]"
    if value is None:
        raise UsageError(f"{spec.name}: missing; expected {expected}", page="sessions")
    if callable(value) and not hasattr(value, "__array__"):
        raise UsageError(
            f"{spec.name}: expected {expected}, and this is a function: call it, and pass what it gives",
            page="sessions",
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        reason = _hint_of_list(spec, value) or f" ({error})"
        raise UsageError(f"{spec.name}: expected {expected}, and this is no array.{reason}", page="sessions") from None
    array = _as_rows_of(spec, array)
    if array.shape[1:] != spec.shape[1:] or array.ndim != len(spec.shape):
        raise UsageError(
            f"{spec.name}: expected {expected}, got {array.dtype} {list(array.shape)}."
            f"{_hint(spec, array)}{_hint_of_list(spec, value)}",
            page="sessions",
        )
    if not len(array):
        raise UsageError(f"{spec.name}: there are no rows", page="sessions")
    array = _cast(spec, array, expected)
    if array.dtype.kind == "f" and not _all_finite(array):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise UsageError(f"{spec.name}: row {row} holds NaN or infinity", page="sessions")
    return array


def _sized(specs: tuple[TensorSpec, ...]) -> str:
    """Return names and shapes of what is taken, rows left out."""
    return ", ".join(f"{spec.label} ({spec.dtype}{list(spec.shape[1:])} a row)" for spec in specs)


def _came(given: Mapping[str, Any]) -> str:
    """Return names and shapes of what was passed in."""
    shapes = {name: getattr(value, "shape", type(value).__name__) for name, value in given.items()}
    return ", ".join(f"{name} ({s if isinstance(s, str) else list(s)})" for name, s in shapes.items()) or "nothing"


def _as_rows_of(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """Return the array in the expected shape, where only axes of size 1 after the rows are too many or missing."""

    def long(shape: tuple[int, ...]) -> list[int]:
        return [size for size in shape[1:] if size != 1]

    if array.ndim and array.shape[1:] != spec.shape[1:] and long(array.shape) == long(spec.shape):
        return array.reshape(len(array), *spec.shape[1:])
    return array


def _hint_of_list(spec: TensorSpec, value: Any) -> str:
    """Return what may be meant by a list that is not the rows of an input or target."""
    if not isinstance(value, list | tuple) or not any(getattr(v, "ndim", 0) for v in value):
        return ""
    if spec.role != "target":
        return f" A {type(value).__name__} is read as rows: give inputs and targets apart, fit(x, y)."
    return f" A list is read as rows, and the program takes one target, {spec.label}: pass its array."


def _hint(spec: TensorSpec, array: np.ndarray) -> str:
    """Return what may be meant by an array of another shape."""
    rest, name = spec.shape[1:], spec.name
    if array.shape == rest:
        return f" The first axis, the rows, is missing: pass {name}[None]."
    if spec.role == "target" and np.dtype(spec.dtype).kind == "i" and array.shape[1:-1] == rest:
        return f" One-hot rows are for loss='categorical_crossentropy'; for labels pass {name}.argmax(-1)."
    if spec.role == "target" and np.dtype(spec.dtype).kind == "f":
        return _hint_of_kind(spec, array)
    return ""


def _hint_of_kind(spec: TensorSpec, array: np.ndarray) -> str:
    """Return how to build a program whose targets are such an array, where they are real numbers of another shape."""
    kind = "int32" if array.dtype.kind in "iu" else "float32"
    shape = ", ".join(map(str, (1, *array.shape[1:]))) + ("," if array.ndim < 2 else "")
    described = f"jax.ShapeDtypeStruct(({shape}), '{kind}')"
    said = f" Without y= in the build the targets of a loss of your own are like the output; for these: y={described}"
    others = " (of several targets a dict of these)" if spec.name != TARGET else ""
    labels = kind == "int32" and array.ndim < len(spec.shape)
    return f"{said}{others}.{_OF_LABELS if labels else ''}"


def _cast(spec: TensorSpec, array: np.ndarray, expected: str) -> np.ndarray:
    """Convert to a dtype where no number changes (a float64 may be rounded, that is what is meant)."""
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted:
        return array
    if array.dtype.kind not in _accepted(wanted):
        said = f" {_STANDS_FOR}" if wanted.itemsize < 4 and array.dtype.kind == "f" else ""
        raise UsageError(f"{spec.name}: expected {expected}, got {array.dtype}.{said}", page="sessions")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(wanted)
    if wanted.kind == "i" and array.dtype.kind == "f" and (broken := array != np.round(array)).any():
        number = array[tuple(np.argwhere(broken)[0])]
        raise UsageError(f"{spec.name}: expected {expected}, whole numbers, and {number:g} is none", page="sessions")
    if array.dtype.kind == "f" and not _all_finite(cast) and (lost := np.isfinite(array) & ~np.isfinite(cast)).any():
        number = array[tuple(np.argwhere(lost)[0])]
        raise UsageError(
            f"{spec.name}: expected {expected}, and {number:g} is larger than {wanted} can hold", page="sessions"
        )
    if array.dtype.kind in ("iu" if wanted.kind == "f" else "iuf") and not (cast == array).all():
        said = f". {_STANDS_FOR}" if wanted.itemsize < 4 and wanted.kind in "iu" else ""
        raise UsageError(
            f"{spec.name}: expected {expected}, got {array.dtype} with numbers that {wanted} cannot hold{said}",
            page="sessions",
        )
    return cast


def _accepted(wanted: np.dtype) -> str:
    """Return the kinds of arrays that may become this type where no number changes.

    What takes few bits is fed what stands for numbers: whether floats are these or the numbers nobody can tell.
    """
    if wanted.kind in "iu" and wanted.itemsize < 4:
        return "iub"
    return {"f": "fiub", "i": "iubf", "b": ""}[wanted.kind]


def _all_finite(array: np.ndarray) -> bool:
    """Return whether every element is finite: a sum first, which is nearly always enough.

    Einsum's is three times as fast.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.einsum(array, range(array.ndim), []))) or bool(np.isfinite(array).all())
