"""Garbage collection while a program is compiled, and memory given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python does not look for garbage in circles.

    Graphs are many small objects that live long and form no circles: to go through all of them again and again takes a
    fifth of the time of a build, and finds nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def give_back() -> None:
    """Gives freed memory back to the system, which glibc does on its own only where nothing lies behind it."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
