"""Pass debugging: `build --dump-after PASS` and `--time-passes`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from converter.driver.pipeline import PIPELINE
from converter.passes.manager import Watch, watched
from converter.support.errors import UsageError, nearest


def watching(dumps: str | None) -> AbstractContextManager[Watch]:
    """Watch the passes of a build; keep the graphs after one of them. Raise UsageError where there is no such pass."""
    names = [one.name for one in PIPELINE]
    if dumps is not None and dumps not in names:
        raise UsageError(
            f"--dump-after: unknown pass {dumps!r}.{nearest(dumps, names)} Passes: {', '.join(names)}",
            page="command-line",
        )
    return watched(Watch(dumps=dumps))
