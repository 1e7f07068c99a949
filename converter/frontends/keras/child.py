"""Child process in which Keras runs on JAX: its side of `converter.frontends.keras.process`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from converter.frontends.keras.importer import import_archive
from converter.frontends.keras.process import Request
from converter.support.errors import PocketuneError


def answer(request: Request) -> tuple[str, Any]:
    """("imported", the model) or ("refused", the error)."""
    try:
        return "imported", import_archive(*request)
    except PocketuneError as error:
        return "refused", error


def main(asked: Path, answered: Path) -> None:
    """Reads the request, writes the answer."""
    request: Request = pickle.loads(asked.read_bytes())  # noqa: S301 (our parent wrote it, in a folder of its own)
    content = pickle.dumps(answer(request))
    # In place at once: the parent takes the file's existence for a whole answer.
    written = answered.with_suffix(".part")
    written.write_bytes(content)
    written.rename(answered)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
