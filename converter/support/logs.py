"""Log suppression: what libraries of C++ write is kept from the terminal unless it is asked for."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import IO

#: Set to anything but 0 to see what libraries log.
VERBOSE = "POCKETUNE_VERBOSE"
#: stdout and stderr are the process': two threads that took them in turns would give back each other's.
_OUTPUT = RLock()
#: Lines of the level INFO, by TFLite, absl and older TensorFlow, and what absl says before them.
_CHATTER = re.compile(r"INFO: |I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::")


def are_wanted() -> bool:
    """Return whether the user asks for the logs of libraries."""
    return os.environ.get(VERBOSE, "0") not in ("", "0")


def silent_environment() -> dict[str, str]:
    """Return what TensorFlow and XLA read in the environment of a process of ours: errors alone.

    Empty where logs are wanted; what the user has set stays.
    """
    return {} if are_wanted() else {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}


def hush() -> None:
    """Keeps what TensorFlow and XLA log from the terminal, for a process that is ours from its start."""
    os.environ.update(silent_environment())
    sys.meta_path.insert(0, _TensorFlow())


class _TensorFlow(MetaPathFinder):
    """Finds TensorFlow, which logs while it is imported before it reads in its environment what it should log."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def quietly(module: ModuleType) -> None:
                with without_chatter():
                    execute(module)

            spec.loader.exec_module = quietly  # type: ignore[method-assign]
        return spec


@contextmanager
def without_chatter() -> Iterator[None]:
    """Drops what libraries tell of themselves meanwhile; all else, errors too, is printed when they are done."""
    if are_wanted():
        yield
        return
    lines: list[str] = []
    try:
        with listening() as said:
            try:
                yield
            finally:
                sys.stderr.flush()
                lines = said().splitlines(keepends=True)
    finally:
        sys.stderr.writelines(line for line in lines if not _CHATTER.match(line))


@contextmanager
def listening() -> Iterator[Callable[[], str]]:
    """Takes what engines write to stdout and stderr while they open things; yields a way to read it."""
    with _OUTPUT, tempfile.TemporaryFile() as heard:

        def said() -> str:
            heard.seek(0)
            return heard.read().decode(errors="replace")

        sys.stdout.flush()
        with redirected(heard):
            yield said


@contextmanager
def redirected(file: IO[bytes]) -> Iterator[None]:
    """Has what anybody writes to stdout or stderr, also what C does, go into a file."""
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in kept:
            os.dup2(file.fileno(), number)
        yield
    finally:
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)
