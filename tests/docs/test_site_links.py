"""Links that are right on GitHub are right on the site."""

import posixpath
import re

import pytest

from scripts.pages.links import OUTSIDE, ROOT, with_site_links

PAGES = [*OUTSIDE, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]


def sections_of(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize(
    ("uri", "text", "expected"),
    [
        ("index.md", "[a](docs/cli.md#losses)", "[a](cli.md#losses)"),
        ("index.md", "[docs/cli.md](docs/cli.md)", "[docs/cli.md](cli.md)"),
        ("cli.md", "[a](../README.md)", "[a](index.md)"),
        ("errors/losses.md", "[a](../cli.md#losses)", "[a](../cli.md#losses)"),
        ("changelog.md", "([docs/report.md](docs/report.md))", "([docs/report.md](report.md))"),
        ("performance.md", "[scripts/bench](../scripts/bench/README.md)", "scripts/bench (`scripts/bench/README.md`)"),
        ("index.md", "![a](docs/time-to-accuracy.svg)", "![a](time-to-accuracy.svg)"),
        ("cli.md", "[`scripts/demo`](../scripts/demo)", "`scripts/demo`"),
        ("cli.md", "[a](https://example.org) [b](#losses)", "[a](https://example.org) [b](#losses)"),
        ("cli.md", "```kotlin\nf[0](../nothing)\n```", "```kotlin\nf[0](../nothing)\n```"),
    ],
)
def test_links(uri: str, text: str, expected: str) -> None:
    assert with_site_links(text, uri) == expected


def test_a_link_to_nothing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/nothing\.py"):
        with_site_links("[a](nothing.py)", "cli.md")


@pytest.mark.parametrize("page", PAGES)
def test_sections_that_are_linked_to_are_there(page: str) -> None:
    links = re.findall(r"\]\(([^)\s:#]*)#([^)\s]+)\)", (ROOT / page).read_text())
    found = [
        (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, a) for path, a in links
    ]
    assert not [(path, anchor) for path, anchor in found if path in PAGES and anchor not in sections_of(path)]
