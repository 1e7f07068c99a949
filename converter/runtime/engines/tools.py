"""Set-up tools: programs of the machine, and a folder that is there whole or not at all."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from converter.support.errors import UsageError

#: Seconds that one may take; some download.
LIMIT = 900


def run(command: Sequence[str], where: Path | None = None, advice: str = "") -> None:
    """Runs one to its end.

    Args:
        command: the program and its arguments.
        where: the folder that it runs in; None: this process's.
        advice: what to do where it is missing or fails.

    Raises:
        UsageError: it is missing, fails, or takes too long.
    """
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} is needed{advice and f' ({advice})'}: {error}", page="engines") from None
    if done.returncode:
        raise UsageError(
            f"{' '.join(command)} failed{advice and f' ({advice})'}: {done.stderr.strip()[-400:]}", page="engines"
        )


@contextmanager
def replaced(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A folder for what is fetched, and in it an empty one that takes the place of `folder` unless something fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
        ready = Path(temporary) / "ready"
        ready.mkdir()
        yield Path(temporary), ready
        shutil.rmtree(folder, ignore_errors=True)
        ready.rename(folder)
