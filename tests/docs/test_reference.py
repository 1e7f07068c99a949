"""The reference holds what the package offers."""

import re

import converter
from tests.tree import ROOT


def test_the_reference_has_each_name_of_the_package() -> None:
    listed = re.findall(r"^::: converter\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(converter.__all__)
