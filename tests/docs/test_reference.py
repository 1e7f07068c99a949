"""The reference holds what the package offers."""

import re

import pocketune
from tests.tree import ROOT


def test_the_reference_has_each_name_of_the_package() -> None:
    listed = re.findall(r"^::: pocketune\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    modules = {"federated", "losses", "runtime"}  # the reference has the last one whole
    assert sorted(listed) == sorted(set(pocketune.__all__) - set(pocketune.runtime.__all__) - modules)
