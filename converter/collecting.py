"""The garbage collector while a program is compiled."""

from __future__ import annotations

import gc
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
