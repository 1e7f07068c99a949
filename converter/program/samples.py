"""Rows from an .npz file that is not trusted."""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from converter.program.manifest import TARGET
from converter.support.errors import UsageError, nearest
from converter.support.files import check_regular

#: A hundred samples are much smaller; compressed ones do not expand by more than this.
MAX_BYTES = 1 << 30
MAX_EXPANSION = 200


def read_samples(path: Path) -> Any:
    """Return the arrays of an .npz file, as for the calibration of `pocketune.build`.

    Raises:
        UsageError: the file is missing, no .npz of plain arrays, or its arrays are larger than it can hold.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _check_member(archive, info)
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file.items())
    except UsageError:
        raise
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.npz")]
        raise UsageError(f"no such file: {path}.{nearest(path.name, siblings)}", page="command-line") from None
    except Exception as error:  # on damaged bytes zipfile, its decompressors and NumPy raise errors of many kinds
        raise UsageError(
            f"{path}: expected an .npz file of arrays, from numpy.savez(path, x=..., y=...) ({error})",
            page="command-line",
        ) from None
    y: Any = arrays.pop(TARGET, None)
    if several := {name: arrays.pop(name) for name in list(arrays) if name.startswith(f"{TARGET}/")}:
        y = {name.removeprefix(f"{TARGET}/"): array for name, array in several.items()}
    x = arrays["x"] if arrays.keys() == {"x"} else arrays
    return x if y is None else (x, y)


def _check_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Refuses an array that expands, or claims a shape that the member cannot hold, before any of it is read."""
    if info.file_size > min(MAX_BYTES, max(1 << 20, MAX_EXPANSION * info.compress_size)):
        raise UsageError(
            f"{archive.filename}: {info.filename!r} expands to {info.file_size} bytes. Refused.", page="command-line"
        )
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if prod(shape) * dtype.itemsize > info.file_size:
        raise UsageError(
            f"{archive.filename}: {info.filename!r} claims {dtype} {list(shape)}, more than it holds",
            page="command-line",
        )
