"""Command lines that a person can run as they are printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote
from shutil import which

#: The command, and the module that is the same.
NAME = MODULE = "pocketune"


def command(arguments: str) -> str:
    """Return the command line with these arguments for the installation that runs now.

    `pocketune ...` where the shell finds this installation's, else by its path, or by the module.
    """
    return f"{program()} {arguments}"


def program() -> str:
    """Return what a person types before the name of a command."""
    python = Path(sys.executable or "python")
    script = python.with_name(NAME)
    if script.is_file():
        return _typed(script)
    return f"{_typed(python)} -m {MODULE}"


def _typed(program: Path) -> str:
    """A program as a person would type it: its name where the shell finds it, else its path."""
    found = which(program.name)
    if found is not None and Path(found).absolute() == program:
        return program.name
    relative = os.path.relpath(program)
    return quote(str(program) if relative.startswith("..") else relative)
