"""Links that are right on GitHub are right on the site."""

import pytest

from scripts.pages.links import with_site_links


@pytest.mark.parametrize(
    ("uri", "text", "expected"),
    [
        ("index.md", "[a](docs/cli.md#losses)", "[a](cli.md#losses)"),
        ("index.md", "[docs/cli.md](docs/cli.md)", "[docs/cli.md](cli.md)"),
        ("cli.md", "[a](../README.md)", "[a](index.md)"),
        ("errors/losses.md", "[a](../cli.md#losses)", "[a](../cli.md#losses)"),
        ("changelog.md", "([docs/report.md](docs/report.md))", "([docs/report.md](report.md))"),
        ("performance.md", "[scripts/bench](../scripts/bench/README.md)", "scripts/bench (`scripts/bench/README.md`)"),
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
