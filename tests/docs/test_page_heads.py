"""Head of each page: its title, then whom it is for and how long it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tree import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
HEAD = re.compile(r"\*For .+; (\d+ minutes?.*|a minute each|to look things up)\.\*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_for_whom_it_is_and_for_how_long(page: Path) -> None:
    title, empty, head, *_ = page.read_text(encoding="utf-8").splitlines()
    assert (title[:2], empty) == ("# ", "")
    assert HEAD.fullmatch(head), f"{page.name}: the third line is {head!r}"
