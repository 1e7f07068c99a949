"""Variables of the process' environment, for libraries that read them as they are imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def environment(**defaults: str) -> Iterator[None]:
    """Inside, variables that nobody has set have these values; after it the environment is what it was."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
