"""Every block of Python and shell in README.md and docs/ runs, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import faults, pages, parse, run
from tests.tree import ROOT

#: Pages that run in every test run, for they take seconds; the others in the slow one.
QUICK = {"docs/tutorial.md"}


def _case(path: Path) -> object:
    name = str(path.relative_to(ROOT))
    return pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("path", [_case(path) for path in pages() if list(parse(path).examples())])
def test_the_blocks_of_a_page_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for reason in run(path, tmp_path):
        print("left out:", reason)


def test_every_block_says_its_language() -> None:
    found = [fault for path in pages() for fault in faults(str(path.relative_to(ROOT)), path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["```\nx = 1\n```\n", "```py\nx = 1\n```\n", "Thus:\n\n    x = 1\n"])
def test_a_planted_block_is_found(text: str) -> None:
    assert len(faults("page.md", text)) == 1


def test_a_block_that_fails_fails_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.chdir(tmp_path)
    page.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        run(page, tmp_path)
    for link in [path for path in tmp_path.iterdir() if path.is_symlink()]:
        link.unlink()
    page.write_text('<!-- skip: next "no such thing" -->\n\n```bash\nfalse\n```\n\n```bash\ntest -d .venv\n```\n')
    assert len(run(page, tmp_path)) == 1
