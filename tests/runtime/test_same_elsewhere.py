"""What the trainers of phones and browsers know of losses and engines is what the host knows."""

import re
from pathlib import Path

import pytest

from converter.program.manifest.certificates import ON
from converter.runtime import targets
from converter.runtime.engines import ENGINES
from converter.training.losses import LOSSES
from tests.tree import ROOT

KOTLIN = ROOT / "android_app/trainer/src/main/kotlin/org/pocketune/trainer"
WEB = ROOT / "web/trainer"


@pytest.mark.parametrize("path", [KOTLIN / "Numbers.kt", WEB / "numbers.ts"], ids=lambda path: path.name)
def test_losses_take_the_same_numbers(path: Path) -> None:
    text = path.read_text()
    words = dict(re.findall(r'([A-Z]+)(?::| =).*?"(.+?)"', text))
    found = {loss: words[numbers] for loss, numbers in re.findall(r'"(\w+)"(?: to|,) ([A-Z]+)\b', text)}
    assert found == {loss: numbers.words for loss, numbers in targets._TAKES.items()}
    assert found.keys() <= set(LOSSES)


@pytest.mark.parametrize("path", [KOTLIN / "ManifestChecks.kt", WEB / "manifest-checks.ts"], ids=lambda path: path.name)
def test_certificates_name_the_same_engines(path: Path) -> None:
    (found,) = re.findall(r"gpu\|[^\")]+\+", path.read_text())
    assert f"({found})" == ON
    assert {name.partition(":")[0] for name in found.split("|")} == set(ENGINES)
