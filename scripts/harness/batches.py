"""The data of a job: made from a seed or taken from the user's arrays, in the file format that the app reads."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from converter.program.manifest import Manifest, TensorSpec
from converter.program.synthetic import synthetic_target
from converter.support.errors import UsageError

#: More batches than this are not sent: steps take them in turn.
MOST_BATCHES = 16


@dataclass(frozen=True)
class Batch:
    """What one step takes.

    Attributes:
        inputs: the array of a model's only input, or arrays by name.
        target: what the model should answer, or arrays by name where there are several targets.
        weight: float32 [batch].
    """

    inputs: np.ndarray | dict[str, np.ndarray]
    target: np.ndarray | dict[str, np.ndarray]
    weight: np.ndarray


def _specs(manifest: Manifest) -> list[TensorSpec]:
    """Return the tensors of a batch in the order of the file: inputs, target and weight of all rows of a step."""
    row = [s for s in manifest.calls[manifest.step].inputs if s.role in ("input", "target", "weight")]
    return [replace(s, shape=(manifest.batch, *s.shape[1:])) for s in row]


def classes_of(manifest: Manifest) -> int:
    """Return how many labels there are: the model's last axis."""
    infer = manifest.calls.get("infer")
    return infer.giving("output")[0].shape[-1] if infer else 2


def random_batches(manifest: Manifest, count: int, seed: int) -> bytes:
    """Return a file of batches: inputs and real targets from a normal distribution, labels uniform, weights 1.

    Integer inputs (tokens) are 0 and 1 alone, which every table has.
    """
    rng, classes = np.random.default_rng(seed), classes_of(manifest)

    def tensor(spec: TensorSpec) -> np.ndarray:
        if spec.role == "weight":
            return np.ones(spec.shape, "<f4")
        if spec.role == "target" and spec.dtype == "float32":
            known = manifest.target_labels.get(spec.name)
            signed = known is not None and known.only
            if len(spec.shape) > 1 and spec.shape[-1] == classes and not signed:
                return np.eye(classes, dtype="<f4")[rng.integers(0, classes, spec.shape[:-1])]
            return synthetic_target(spec, manifest, rng).astype("<f4")
        if spec.dtype == "float32":
            return rng.standard_normal(spec.shape).astype("<f4")
        labels = manifest.target_labels.get(spec.name)
        limit = 2 if spec.role != "target" else (labels and labels.count) or classes
        return rng.integers(0, limit, spec.shape).astype(np.dtype(spec.dtype).newbyteorder("<"))

    return b"".join(tensor(spec).tobytes() for _ in range(min(count, MOST_BATCHES)) for spec in _specs(manifest))


def batches_from(manifest: Manifest, file: Path, count: int) -> bytes:
    """Make a file of batches of the user's arrays: an .npz with `y` (`y/...` for several) and each input by name.

    Raises:
        UsageError: an array is missing, too short, or of another shape.
    """
    try:
        if not zipfile.is_zipfile(file):
            raise UsageError(f"{file}: no .npz (numpy.savez makes one)")
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{file}: no .npz with arrays ({error})") from None
    specs, columns = _specs(manifest), {}
    for spec in specs:
        if spec.role == "weight":
            continue
        array = arrays.get(spec.name)
        if array is None or array.shape[1:] != spec.shape[1:] or array.shape[:1] < (manifest.batch,):
            found = "is missing" if array is None else f"has the shape {array.shape}"
            raise UsageError(f"{file}: {spec.name} {found}, and the program takes batches of {list(spec.shape)}")
        columns[spec.name] = _converted(array, spec, file)
    count = min(count, MOST_BATCHES, min(len(a) for a in columns.values()) // manifest.batch)
    ones = np.ones(manifest.batch, "<f4")
    pieces = []
    for i in range(count):
        rows = slice(i * manifest.batch, (i + 1) * manifest.batch)
        pieces += [(columns[s.name][rows] if s.name in columns else ones).tobytes() for s in specs]
    return b"".join(pieces)


def _converted(array: np.ndarray, spec: TensorSpec, file: Path) -> np.ndarray:
    """As the program takes it. Raises UsageError for what is no number there."""
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{file}: {spec.name} holds {array.dtype}, and the program takes {spec.dtype}")
    if not np.isfinite(array).all():
        raise UsageError(f"{file}: {spec.name} holds NaN or infinity")
    with np.errstate(over="ignore"):
        converted = array.astype(np.dtype(spec.dtype).newbyteorder("<"))
    if not np.isfinite(converted).all():
        raise UsageError(f"{file}: {spec.name} holds numbers too large for {spec.dtype}")
    if spec.dtype != "float32" and not np.array_equal(converted, array):
        raise UsageError(f"{file}: {spec.name} holds numbers that {spec.dtype} has not")
    return converted


def read_batches(file: Path, manifest: Manifest) -> list[Batch]:
    """Return the batches of a file. Raises UsageError when its size is not that of whole batches of this program."""
    return list(_parse(file.read_bytes(), manifest, file.name))


def _parse(data: bytes, manifest: Manifest, name: str) -> Iterator[Batch]:
    specs = _specs(manifest)
    sizes = [prod(s.shape) * np.dtype(s.dtype).itemsize for s in specs]
    if not data or len(data) % sum(sizes):
        raise UsageError(f"{name}: {len(data)} bytes, and a batch of this program has {sum(sizes)}")
    at = 0
    while at < len(data):
        arrays = {}
        for spec, size in zip(specs, sizes, strict=True):
            dtype = np.dtype(spec.dtype).newbyteorder("<")
            arrays[spec.name] = np.frombuffer(data, dtype, prod(spec.shape), at).reshape(spec.shape)
            at += size
        inputs, targets = ({s.label: arrays[s.name] for s in specs if s.role == role} for role in ("input", "target"))
        (weight,) = (arrays[s.name] for s in specs if s.role == "weight")
        yield Batch(_alone(inputs), _alone(targets), weight)


def _alone(arrays: dict[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays
