"""Programs of the machine that set engines up."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from converter.errors import UsageError

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
        raise UsageError(f"{command[0]} is needed{advice and f' ({advice})'}: {error}") from None
    if done.returncode:
        raise UsageError(f"{' '.join(command)} failed{advice and f' ({advice})'}: {done.stderr.strip()[-400:]}")
