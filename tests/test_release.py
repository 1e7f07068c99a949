"""A release: the version stands the same everywhere, the changelog is cut, and what is written is whole."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import pytest

from scripts.release import changelog, version
from tests.tree import ROOT

LOG = "# Changes\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## 0.1.0 - 2026-01-01\n\n- All.\n"


def test_the_version_is_the_same_everywhere() -> None:
    found = version.places()
    others = [place for place in found if place.version != version.current()]
    assert not others
    holding = {place.path for place in found}
    assert {"pyproject.toml", "CITATION.cff", "web/package.json", "web/package-lock.json"} <= holding
    assert {"android_app/pom.xml", "android_app/trainer/pom.xml", "android_app/app/build.gradle.kts"} <= holding
    assert {"docs/install.md", "docs/android.md", "docs/web.md", "README.md", "tests/installed.py"} <= holding
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "android_app").glob("*/pom.xml")}
    assert modules <= holding


def test_no_place_holds_the_version_in_another_form() -> None:
    """A new kind of place must be one that `scripts.release.version` sets."""
    known = {(place.path, place.line) for place in version.places()}
    ours = re.compile(rf"pocketune\S*{re.escape(version.current())}")
    listing = subprocess.check_output(
        ["git", "ls-files", "-z", "--", "*.md", "*.kts", "*.xml", "*.json", "*.toml"], cwd=ROOT
    )
    for name in filter(None, listing.decode().split("\0")):
        if name == changelog.NAME:
            continue
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            assert (name, number) in known or not ours.search(line), f"{name}:{number}"


def test_setting_the_version_sets_it_everywhere_and_cuts_the_changelog(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    scripts = {
        f"scripts/{name}" for name in ("__init__.py", "arguments.py", "release/__init__.py", "release/changelog.py")
    }
    for name in {place.path for place in version.places()} | scripts | {"scripts/release/version.py"}:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    (clone / changelog.NAME).write_text(LOG)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=clone, check=True)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scripts.release.version", *arguments]
        return subprocess.run(
            command, cwd=clone, env=os.environ | {"PYTHONPATH": str(clone)}, capture_output=True, text=True, check=False
        )

    for wrong in (version.current(), "0.0.9", "1.2", "v9.0.0"):
        refused = run(wrong)
        assert refused.returncode == 2
        assert wrong in refused.stderr
    assert not subprocess.check_output([*git, "status", "--porcelain"], cwd=clone)
    done = run("7.8.9")
    assert done.returncode == 0, done.stderr
    told = subprocess.check_output(
        [
            sys.executable,
            "-c",
            "from scripts.release.version import *; print(current(), {p.version for p in places()})",
        ],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone)},
        text=True,
    )
    assert told == "7.8.9 {'7.8.9'}\n"
    assert (
        len(version.places()) == subprocess.check_output([*git, "diff", "-U0"], cwd=clone, text=True).count("7.8.9") - 1
    )
    assert "<version.code>70809</version.code>" in (clone / "android_app/app/pom.xml").read_text()
    assert "versionCode = 70809" in (clone / "android_app/app/build.gradle.kts").read_text()
    assert "versionCode = 1\n" in (clone / "examples/android/app/build.gradle.kts").read_text()
    assert f"date-released: {date.today().isoformat()}\n" in (clone / "CITATION.cff").read_text()
    log = (clone / changelog.NAME).read_text()
    assert changelog.section(log, "7.8.9") == "### Added\n\n- A thing.\n"
    assert changelog.section(log, "0.1.0") == "- All.\n"
    again = run("7.9.0")
    assert again.returncode == 2
    assert "no change" in again.stderr


def test_the_changelog_says_nothing_of_a_version_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"nothing of 0\.2\.0"):
        changelog.section(LOG, "0.2.0")
    with pytest.raises(ValueError, match="no change"):
        changelog.cut("# Changes\n\n## Unreleased\n\n## 0.1.0\n\n- All.\n", "0.2.0", date(2026, 1, 1))


def test_a_release_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    command = [sys.executable, "-m", "scripts.release", str(tmp_path)]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no empty folder" in refused.stderr or "says nothing of" in refused.stderr or "needs " in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("mvn", "javac", "node", "npm"))), reason="left out: needs Maven, a JDK and Node"
)
def test_what_people_get_is_whole(tmp_path: Path) -> None:
    now = version.current()
    command = [sys.executable, "-m", "scripts.release", str(tmp_path / "out")]
    subprocess.run(command, cwd=ROOT, check=True)
    out = tmp_path / "out"
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir() if path.name != "SHA256SUMS"
    }
    wheel, package = f"pocketune-{now}-py3-none-any.whl", f"pocketune-{now}.tgz"
    assert set(sums) == {wheel, package, f"pocketune-{now}-maven.zip", f"pocketune-{now}-page.zip", "NOTES.md"}
    assert f"# Pocketune {now}" in (out / "NOTES.md").read_text()
    with zipfile.ZipFile(out / f"pocketune-{now}-maven.zip") as archive:
        assert f"org/pocketune/runtime-tflite/{now}/runtime-tflite-{now}.aar" in archive.namelist()
    with zipfile.ZipFile(out / f"pocketune-{now}-page.zip") as archive:
        assert "index.html" in archive.namelist()
    _installs(out, wheel, package, tmp_path)


def _installs(out: Path, wheel: str, package: str, folder: Path) -> None:
    """In empty projects: pip takes the wheel, and npm the package."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    # What lies on the path of the tests is no part of an empty project.
    empty = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pip", "install", "--quiet", out / wheel], check=True, cwd=folder, env=empty)
    told = subprocess.check_output([folder / "venv/bin/pocketune", "--version"], text=True, cwd=folder, env=empty)
    assert told == f"pocketune {version.current()}\n"
    (folder / "npm").mkdir()
    subprocess.run(["npm", "init", "--yes"], check=True, cwd=folder / "npm", stdout=subprocess.DEVNULL)
    subprocess.run(["npm", "install", "--silent", out / package], check=True, cwd=folder / "npm")
    code = "import * as it from 'pocketune'; console.log(typeof it.Trainer)"
    told = subprocess.check_output(["node", "--input-type=module", "-e", code], text=True, cwd=folder / "npm")
    assert told == "function\n"
