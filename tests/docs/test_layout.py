"""The page of what lies where is what the docstrings say, and every module has one."""

from scripts.pages.layout import PAGE, layout, summary
from scripts.pages.refusals import PACKAGES
from tests.tree import sources


def test_the_page_is_made_anew_with_what_it_is_made_of() -> None:
    assert PAGE.read_text() == layout(), "write it anew: .venv/bin/python -m scripts.pages.layout"


def test_every_module_says_what_it_is() -> None:
    assert not [path for path in sources(*PACKAGES) if not summary(path)]
