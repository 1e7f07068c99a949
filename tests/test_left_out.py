"""Whatever is left out of a run is said at its end, with its number and what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

SUITE = """\
import pytest

@pytest.mark.skipif(True, reason="there is no Chromium: apt-get install chromium")
@pytest.mark.parametrize("number", range(3))
def test_page(number): ...

def test_engine():
    pytest.skip("gpu: there is no Vulkan driver")

@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_slow(number): ...

def test_quick(): ...
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_tests_are_counted_by_reason(processes: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.left_out import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\naddopts = -m 'not slow'\n")
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "test_ray.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    said = [line.removeprefix("tests: left out: ") for line in done.stdout.splitlines() if "left out: " in line]
    assert said == [
        "3 x there is no Chromium: apt-get install chromium",
        "2 x not asked for by -m 'not slow'",
        "1 x could not import 'no_such_package': No module named 'no_such_package'",
        "1 x gpu: there is no Vulkan driver",
    ], done.stdout


def machine(folder: Path, user: int, apt: str | None) -> dict[str, str]:
    """An environment with bash's own commands, `id` of a user, and `apt-get` where it is given, a line of shell."""
    (folder / "id").write_text(f"#!/bin/bash\necho {user}\n")
    if apt is not None:
        (folder / "apt-get").write_text(f'#!/bin/bash\necho "$@" >>{folder}/asked\n{apt}\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("user", "apt", "status", "words"),
    [
        (0, ":", 0, "page: installing one two"),
        (0, "echo no network >&2; exit 100", 77, "page: left out: apt-get could not install"),
        (
            1000,
            ":",
            77,
            "page: left out: needs packages that only root can install (on Debian: sudo apt-get install one",
        ),
        (
            0,
            None,
            77,
            "page: left out: needs packages that are not installed (on Debian: sudo apt-get install one two)",
        ),
    ],
)
def test_packages_are_installed_or_named(user: int, apt: str | None, status: int, words: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.touch()
    needs = ["no-such-command,nor-this:one", f"{tmp_path}/no-such-file:two", f"nothing,{here}:three"]
    done = subprocess.run(
        ["/bin/bash", ROOT / "scripts/need", "page", *needs],
        env=machine(tmp_path, user, apt),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert words in done.stderr
    asked = (tmp_path / "asked").read_text() if apt is not None and user == 0 else ""
    assert ("one two" in asked) == (status == 0)
    assert "three" not in asked + done.stderr


def test_what_is_here_is_not_installed(tmp_path: Path) -> None:
    subprocess.run(["/bin/bash", ROOT / "scripts/need", "x", "bash:y"], env={"PATH": "/bin"}, check=True)
