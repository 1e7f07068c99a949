"""Progress bar on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(steps: int | None, shown: bool) -> Iterator[Callable[[str, int], None]]:
    """Gives a function that shows a line and counts steps; silent when stderr is no terminal or `shown` is False."""
    if not (shown and sys.stderr.isatty()):
        yield lambda line, steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=steps)
        yield lambda line, steps: bar.update(task, advance=steps, description=line)
