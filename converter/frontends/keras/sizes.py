"""Size checks: how large a `.keras` file says its model is, against its weights, before anything is made."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from converter.frontends.keras.archive import WEIGHTS
from converter.support.errors import UsageError

#: No layer of a model for a phone gives more numbers for one example.
MAX_ROW_ELEMENTS = 1 << 26
#: Nor one of more axes.
MAX_AXES = 32
#: No model has more weights.
MAX_ENTRIES = 100_000
_AGAIN = "Save or copy it again."


def check_weights(path: Path) -> int:
    """Reads the index of an archive's weights, none of the weights; returns the bytes that they take in the file.

    Raises:
        UsageError: they are no weights of Keras, lie outside of the file, or claim to be larger than they are.
    """
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in WEIGHTS if name in archive.namelist())
        size = archive.getinfo(name).file_size
        if name.endswith(".npz"):
            return size
        try:
            # HDF5 reads here and there, and going back in a member of an archive begins it anew. One that is no larger
            # than the archive fits the memory; what was packed smaller may not.
            with archive.open(name) as member:
                whole = size <= path.stat().st_size
                claimed = _claimed_bytes(path, io.BytesIO(member.read()) if whole else io.BufferedReader(member))
        except UsageError:
            raise
        except Exception as error:  # h5py raises errors of many kinds for damaged bytes
            raise UsageError(
                f"{path}: cannot load its weights, {name} is damaged: {error}. {_AGAIN}", page="keras-files"
            ) from None
    if claimed > size:
        raise UsageError(
            f"{path}: its weights claim {claimed} bytes, and {name} has {size}. Refused.", page="keras-files"
        )
    return size


def check_sizes(model: Any, stored: int, path: Path) -> None:
    """Compares a model whose variables are not made yet with the bytes that are stored for them.

    Raises:
        UsageError: the weights that its config describes are not in the file, or a layer's output fits no memory.
    """
    described = sum(prod(v.shape) * jnp.dtype(v.dtype).itemsize for v in model.variables)
    if described > stored:
        largest = max(model.variables, key=lambda v: prod(v.shape))
        raise UsageError(
            f"{path}: its config describes weights of {described} bytes, and it stores {stored}; the largest is "
            f"{largest.path} {list(largest.shape)}. {_AGAIN}",
            page="keras-files",
        )
    for name, shape in _outputs(model):
        if len(shape) > MAX_AXES:
            raise UsageError(
                f"{path}: {name!r} has {len(shape)} axes, and no tensor has more than {MAX_AXES}", page="keras-files"
            )
        if prod(size or 1 for size in shape[1:]) > MAX_ROW_ELEMENTS:
            raise UsageError(
                f"{path}: the layer {name!r} gives {list(shape[1:])} for one example: no phone holds that",
                page="keras-files",
            )


def _claimed_bytes(path: Path, file: Any) -> int:
    """Return the bytes of all datasets by their shapes. Nothing of an HDF5 file is followed out of it."""
    import h5py

    total = 0
    with h5py.File(file, "r") as root:
        stack = [root]
        seen = 0
        while stack:
            group = stack.pop()
            for key in group:
                seen += 1
                link = group.get(key, getlink=True)
                if not isinstance(link, h5py.HardLink) or seen > MAX_ENTRIES:
                    raise UsageError(f"{path}: its weights hold a link, {key!r}. Refused.", page="keras-files")
                item = group[key]
                if isinstance(item, h5py.Group):
                    stack.append(item)
                    continue
                if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
                    raise UsageError(
                        f"{path}: its weights {item.name!r} lie outside of the file. Refused.", page="keras-files"
                    )
                if item.dtype.kind not in "fiubV":
                    raise UsageError(
                        f"{path}: its weights {item.name!r} are of type {item.dtype}. Refused.", page="keras-files"
                    )
                total += item.size * item.dtype.itemsize
    return total


def _outputs(model: Any) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """(name, shape) of a model's inputs and of what its layers and operations give, those of inner models included."""
    import keras

    for tensor in getattr(model, "inputs", None) or ():
        yield str(tensor.name), tuple(tensor.shape)
    for operation in getattr(model, "operations", None) or getattr(model, "layers", None) or ():
        yield from _outputs(operation)
        try:
            outputs = keras.tree.flatten(operation.output)
        except (AttributeError, ValueError):  # one that was called several times, or not at all
            outputs = []
        for tensor in outputs:
            if getattr(tensor, "shape", None) is not None:
                yield str(operation.name), tuple(tensor.shape)
