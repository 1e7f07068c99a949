"""Versions: what is installed is pinned, and nothing says where to get it; read from the files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import pytest
from packaging.requirements import Requirement

from tests.tree import ROOT, scripts


def requirement_faults(name: str, lines: list[str]) -> list[str]:
    """Requirements that are not pinned, and anything that says where to get them: that is the user's choice."""
    wanted = (line.split("#")[0].strip() for line in lines)
    return [
        f"{name}: {line}"
        for line in wanted
        # What scripts/pretrained unpacks may be of npm, too.
        if line and not re.fullmatch(r"(npm:)?[\w.-]+(\[[\w,-]+])?==[\w.+!]+( --hash=sha256:[0-9a-f]{64})?", line)
    ]


def index_faults(name: str, text: str) -> list[str]:
    """Places in a script that name a package index."""
    pattern = r"--(extra-)?index-url|--find-links|--trusted-host|PIP_\w*(INDEX|FIND_LINKS)\w*=|pypi\.org|/simple\b"
    return [f"{name}: {found[0]}" for found in re.finditer(pattern, text)]


def _project_requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    return [*project["build-system"]["requires"], *project["project"]["dependencies"], *(r for e in extras for r in e)]


def range_faults(requirements: list[str], pins: Mapping[str, str]) -> list[str]:
    """Requirements of the project that leave everything open, or that the pinned versions do not meet."""
    faults = []
    for requirement in map(Requirement, requirements):
        name = requirement.name.lower()
        if not any(part.operator in (">=", "==") for part in requirement.specifier):
            faults.append(f"{requirement}: from which version on?")
        elif pins.get(name) is None or not requirement.specifier.contains(pins[name]):
            faults.append(f"{requirement}: constraints.txt has {pins.get(name)}")
    return faults


def _pins() -> dict[str, str]:
    """Versions of all packages; those of Flower's own environment come second."""
    files = (ROOT / "scripts/flower/requirements.txt", ROOT / "constraints.txt")
    lines = (line.split("#")[0].strip() for path in files for line in path.read_text().splitlines())
    return {name.lower(): version for name, _, version in (line.partition("==") for line in lines if line)}


def test_what_is_installed_is_pinned_and_no_index_is_named() -> None:
    found = []
    for path in [ROOT / "constraints.txt", *ROOT.glob("scripts/**/requirements*.txt")]:
        found += requirement_faults(path.name, path.read_text().splitlines())
    for path in [*scripts(), ROOT / "pyproject.toml"]:
        found += index_faults(path.name, path.read_text())
    assert not found, "\n".join(found)


def test_the_projects_ranges_hold_the_pinned_versions() -> None:
    assert not range_faults([r for r in _project_requirements() if not r.startswith("pocketune[")], _pins())


def test_no_version_is_excluded_that_may_work() -> None:
    """A release of a library does not end what works: what is tested is pinned, what is newer is not refused."""
    bounded = [r.name for r in map(Requirement, _project_requirements()) if {p.operator for p in r.specifier} - {">="}]
    assert bounded == [
        "flwr",
        "mkdocs",
        "mkdocs-material",
    ]  # a protocol of each month's; broken plugins


def test_the_page_on_installing_names_the_versions_that_are_pinned() -> None:
    page = (ROOT / "docs/install.md").read_text()
    named = dict(re.findall(r"^\| ([\w-]+) \| (\d[\d.]+) \|$", page, re.MULTILINE))
    assert len(named) > 10
    assert named == {name: _pins()[name] for name in named}
    extras = set(re.findall(r"`([a-z]+)`", page.partition("## Versions")[0]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras >= set(project["optional-dependencies"]) - {"demo", "device", "docs", "test"}


def test_a_planted_range_is_found() -> None:
    assert len(range_faults(["numpy", "numpy<3", "numpy>=99", "nobody>=1"], _pins())) == 4


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "numpy>=2",
        "--index-url https://example.org/simple",
        "-f /opt/wheels",
        "numpy @ https://example.org/numpy.whl",
        "-e .",
    ],
)
def test_a_planted_requirement_is_found(line: str) -> None:
    assert len(requirement_faults("requirements.txt", ["jax==0.10.2  # a pin", line])) == 1


@pytest.mark.parametrize(
    "text", ["pip install --index-url x", "export PIP_INDEX_URL=x", "pip install --extra-index-url x", "curl pypi.org"]
)
def test_a_planted_index_is_found(text: str) -> None:
    assert index_faults("setup", text)
