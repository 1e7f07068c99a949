"""Files of JSON lines, which are not trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.support.files import open_regular

#: No file of lines is larger; a limit for what is not trusted.
MAX_BYTES = 64 << 20


def json_lines(path: Path) -> Iterable[dict[str, Any]]:
    """Return the objects of a file of JSON lines.

    Raises UsageError where it cannot be read, is too large or no JSON.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="reports") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB", page="reports")
    whole, newline, _ = data.rpartition(b"\n")  # the last line of a run that goes on may be cut short
    for number, text in enumerate((whole + newline).splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            raise UsageError(f"{path}:{number} is no JSON", page="reports") from None
        if isinstance(line, dict):
            yield line
