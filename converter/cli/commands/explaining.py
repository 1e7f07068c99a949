"""The command `explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from converter.cli.options import Debug
from converter.cli.tables import Results
from converter.support.errors import UsageError, nearest, pages_folder


def _pages() -> list[str]:
    return sorted(path.stem for path in pages_folder().glob("*.md"))


def explain(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="That an error named. None: lists them.", autocompletion=_pages)
    ] = None,
    debug: Debug = False,
) -> None:
    """Show the page about a kind of error: why it is refused, and what to do."""
    if page is not None and page not in _pages():
        raise UsageError(
            f"there is no page {page!r}.{nearest(page, _pages())} There are {', '.join(_pages())}", page="command-line"
        )
    results = Results()
    if page is None:
        for name in _pages():
            title = (pages_folder() / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            results.line(f"{name:<22} {title}")
    else:
        results.line((pages_folder() / f"{page}.md").read_text(encoding="utf-8").rstrip())
