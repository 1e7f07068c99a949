"""Training log: each event of `TrainingSession.fit` as a line of JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converter.runtime.session.loop import Event


class Journal:
    """A listener for `fit` that writes every event to a file, for `pocketune report --run`.

        with Journal("run.jsonl") as journal:
            session.fit(x, y, epochs=5, listener=journal)

    A line is flushed as it is written, so what was done is there after a crash.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Begins a file again. Raises OSError when it cannot be written."""
        self._file = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115  this is the context manager

    def __call__(self, event: Event) -> None:
        self._file.write(json.dumps({"type": type(event).__name__.lower(), **asdict(event)}) + "\n")

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
