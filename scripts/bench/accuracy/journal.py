"""What was measured, kept line by line, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines, each what was asked for and what came out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if text != whole:  # a run was killed as it wrote the last line
            path.write_text(whole)
        records = [json.loads(line) for line in whole.splitlines()]
        self._known = {_text(record["asked"]): record["found"] for record in records}

    def once(self, asked: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what came out when the same was asked before; else it is made, and written down."""
        key = _text(asked)
        if key not in self._known:
            self._known[key] = make()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"asked": asked, "found": self._known[key]}) + "\n")
        return self._known[key]


def _text(asked: dict[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)
