"""Work folder of a training: its request, its results so far, and checkpoints from which it continues."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.runtime.session.session import TrainingSession
from converter.support.errors import UsageError
from converter.support.files import write_atomically
from converter.support.strict_json import parse_json

_STATE = re.compile(r"step-(\d+)\.state")
#: Checkpoints that are kept; the last may be the one during which the power went.
_KEPT = 2


class Work:
    """The folder.

    Attributes:
        folder: of it.
        known: what was found out so far, by name: plain JSON.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        """Make the folder, or go on in the one that is there.

        Args:
            folder: of it.
            request: what decides of the training, plain JSON.

        Raises:
            UsageError: it cannot be made, or is of a training of something else.
        """
        self.folder, self._file = folder, folder / "learning.json"
        self._request = json.loads(json.dumps(request))
        self.known: dict[str, Any] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            said = parse_json(self._file.read_bytes()) if self._file.exists() else None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot work in {folder}: {reason}", page="command-line") from error
        if said is None:
            self.note()
            return
        begun = said.get("request") if isinstance(said, dict) else None
        if begun != self._request:
            begun = begun if isinstance(begun, dict) else {}
            other = sorted(name for name, value in self._request.items() if begun.get(name) != value)
            raise UsageError(
                f"{folder} belongs to a training with another {' and '.join(other)}: pass its first values to continue "
                "it, or remove the folder, or name another --out",
                page="command-line",
            )
        self.known = dict(said["known"])

    @property
    def program(self) -> Path:
        """The program that trains."""
        return self.folder / "personal.tflite"

    def note(self, **found: Any) -> None:
        """Keep what was found out."""
        self.known |= found
        said = {"request": self._request, "known": self.known}
        write_atomically(self._file, (json.dumps(said, ensure_ascii=False, indent=1) + "\n").encode())

    def save(self, session: TrainingSession, step: int) -> Path:
        """Keep the state after so many steps."""
        path = self.folder / f"step-{step:06}.state"
        session.save(path)
        for _, old in self._states()[_KEPT:]:
            for file in (old, old.with_name(f"{old.name}.previous")):
                file.unlink(missing_ok=True)
        return path

    def go_on(self, session: TrainingSession) -> int:
        """Restore the last checkpoint that is whole, and return after how many steps it was saved."""
        for step, path in self._states():
            try:
                session.restore(path)
            except UsageError:
                continue
            return step
        return 0

    def _states(self) -> list[tuple[int, Path]]:
        """Return checkpoints, the last first."""
        found = [(int(m[1]), path) for path in self.folder.iterdir() if (m := _STATE.fullmatch(path.name))]
        return sorted(found, reverse=True)
