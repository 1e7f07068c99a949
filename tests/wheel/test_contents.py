"""The wheel holds one package, its pages and its metadata, and is found without the clone."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.installed import Installed
from tests.tree import ROOT

PAGES = {path.stem for path in (ROOT / "docs/errors").glob("*.md")}
_ALONE = """
import importlib.util, pathlib, pocketune, pocketune.losses, pocketune.runtime
import pocketune.engines, pocketune.frontends
from pocketune.runtime import TrainingSession
ours = ("converter", "jax_frontend")
assert not [name for name in (*ours, "scripts", "tests") if importlib.util.find_spec(name)]
assert pocketune.TrainingSession is TrainingSession
for name in pocketune.__all__:
    assert getattr(pocketune, name).__name__, name
print(pathlib.Path(pocketune.__file__).parent)
"""


def test_top_level_packages_are_ours_alone(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as file:
        tops = {name.partition("/")[0] for name in file.namelist()}
        (named,) = [file.read(name) for name in file.namelist() if name.endswith("top_level.txt")]
        (said,) = [file.read(name).decode() for name in file.namelist() if name.endswith("METADATA")]
        pages = {Path(name).stem for name in file.namelist() if name.startswith("pocketune/errors/")}
    assert {top for top in tops if ".dist-info" not in top} == {"pocketune"}
    assert named == b"pocketune\n"
    assert all(f"\n{entry}: " in said for entry in ("Project-URL", "Author", "Keywords", "Classifier"))
    assert pages >= PAGES


@pytest.mark.quick
def test_every_name_is_there_and_nothing_of_the_clone(installed: Installed, tmp_path: Path) -> None:
    assert Path(installed.run(installed.python, "-c", _ALONE, at=tmp_path).strip()).is_relative_to(installed.folder)
