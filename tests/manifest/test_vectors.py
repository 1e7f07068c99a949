"""The verdict on each vector: those that the readers in Kotlin and TypeScript are held to, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converter.program.manifest import manifest_of_bytes
from converter.support.errors import UsageError
from tests.manifest.changes import BAD, GOOD
from tests.manifest.make import HERE, vectors
from tests.manifest.programs import PROGRAMS

PLACES = json.loads((HERE / "places.json").read_bytes())


def _named(folder: str) -> list[Path]:
    return sorted((HERE / folder).glob("*.json"))


@pytest.mark.parametrize("path", _named("good"), ids=lambda path: path.stem)
def test_good_manifests_are_read(path: Path) -> None:
    manifest = manifest_of_bytes(path.read_bytes())
    assert manifest_of_bytes(manifest.to_bytes()) == manifest


@pytest.mark.parametrize("path", _named("bad"), ids=lambda path: path.stem)
def test_bad_manifests_are_refused_by_the_place(path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        manifest_of_bytes(path.read_bytes())
    assert str(refused.value).startswith("manifest")
    assert PLACES[path.stem] in str(refused.value)


def test_the_vectors_are_those_of_the_changes() -> None:
    """`python -m tests.manifest.make` writes them."""
    for name, data in vectors().items():
        assert (HERE / name).read_bytes() == data, name
    assert {path.stem for path in _named("bad")} == set(BAD)
    assert {path.stem for path in _named("good")} == {*GOOD, *PROGRAMS}
    assert len(BAD) >= 60
    assert len(PROGRAMS) + len(GOOD) >= 15


@pytest.mark.quick
def test_programs_of_today_are_as_good(subtests: pytest.Subtests) -> None:
    """What the compiler writes now has the fields of the vectors."""
    for name, build in PROGRAMS.items():
        with subtests.test(name):
            written = build().manifest.to_json()
            kept = json.loads((HERE / f"good/{name}.json").read_bytes())
            assert _form(written) == _form(kept)


def _form(value: object) -> object:
    """Which fields there are, and types of what they hold; numbers and words aside."""
    if isinstance(value, dict):
        return {name: _form(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_form(item) for item in value[:1]]
    return type(value).__name__
