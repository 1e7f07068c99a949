"""Rows of a client in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from converter.program.samples import read_samples


def read_rows(path: str | Path) -> Any:
    """Return (x, y), (x, y, weight) or x alone of an .npz file, as for `TrainingSession.fit`.

    Args:
        path: with `x` or the program's inputs by name, `y` or `y/<output>`, and `weight` where rows count differently.

    Raises:
        UsageError: the file is missing, or no .npz of plain arrays.
    """
    rows = read_samples(Path(path))
    x, y = rows if isinstance(rows, tuple) else (rows, None)
    if not isinstance(x, dict) or "weight" not in x:
        return rows
    weight = x.pop("weight")
    return x["x"] if x.keys() == {"x"} else x, y, weight
