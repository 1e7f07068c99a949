"""Links that are right on GitHub, made right on the site: the pages of docs/ and a few files from outside."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Pages that are files outside of docs/: where each is in the repository and on the site.
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]\n]*(?:\n[^\]\n]*)?)\]\((?P<target>[^)\s:]+)\)")


def home(uri: str) -> str:
    """Return where in the repository a page of the site is."""
    return next((source for source, page in OUTSIDE.items() if page == uri), f"docs/{uri}")


def page_of(path: str) -> str | None:
    """Return the page, or the picture, that a file of the repository is on the site, if it is one."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and path.endswith((".md", ".svg")) else None


def with_site_links(text: str, uri: str) -> str:
    """Return a page's Markdown with links as the site has them.

    What is no page of it becomes its path in the repository.

    Raises:
        FileNotFoundError: a link leads to nothing.
    """

    def moved(link: re.Match[str]) -> str:
        name, _, anchor = link["target"].partition("#")
        if not name:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home(uri)), name))
        page = page_of(path)
        if page is None:
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"{home(uri)} links to {path}, which is not there")
            return link["text"] if link["text"].strip("`") == path else f"{link['text']} (`{path}`)"
        target = posixpath.relpath(page, posixpath.dirname(uri) or ".")
        return f"[{link['text']}]({target}{anchor and '#' + anchor})"

    return outside_of_fences(text, lambda part: _LINK.sub(moved, part))


def outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    """Markdown, changed everywhere but in blocks of code."""
    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(text[last:])])
