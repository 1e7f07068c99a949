"""Command lines that a user can run as they are printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote
from shutil import which

#: The command, and the module that is the same.
NAME = "pocketune"


def command(arguments: str) -> str:
    """Return the command line with these arguments for the installation that runs now.

    `pocketune ...` where the shell finds this installation's, else by its path, or by the module.
    """
    return f"{program()} {arguments}"


def program() -> str:
    """Return what a user types before the name of a command."""
    python = Path(sys.executable or "python")
    script = python.with_name(NAME)
    if script.is_file():
        return _typed(script)
    return f"{_typed(python)} -m {NAME}"


def _typed(path: Path) -> str:
    """Return a program as a user would type it: its name where the shell finds it, else its path."""
    found = which(path.name)
    if found is not None and Path(found).absolute() == path:
        return path.name
    relative = os.path.relpath(path)
    return quote(str(path) if relative.startswith("..") else relative)
