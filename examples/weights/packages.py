"""Weights and data of packages that `scripts/pretrained` has unpacked into `.models`."""

from __future__ import annotations

from pathlib import Path

from pocketune import UsageError

FOLDER = Path(__file__).resolve().parents[2] / ".models"


def resource(package: str, file: str) -> Path:
    """A file of a package.

    Args:
        package: name and version, `mlxtend==0.25.0`.
        file: path inside it.

    Raises:
        UsageError: it is not there.
    """
    path = FOLDER / package / file
    if not path.is_file():
        raise UsageError(f"{Path(file).name} of the package {package} is not here yet: run scripts/pretrained")
    return path
