"""Each script says what it does and takes (`--help`), from any folder, before it sets anything up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT

SHELL = sorted(
    path
    for path in (ROOT / "scripts").rglob("*")
    if path.is_file() and os.access(path, os.X_OK) and path.read_bytes().startswith(b"#!/usr/bin/env bash")
)
#: Parts of other scripts, in whose processes or environments they run.
INNER = {"blockwise_run.py", "check.py", "count.py", "runs.py", "task.py", "worker.py"}
#: Scripts that stop at an import without these.
NEEDS = {"layouts": "torchvision", "sweep.py": "torch"}
_EACH = """
import contextlib, io, runpy, sys
from pathlib import Path
for name in sys.argv[1:]:
    path, out, code = Path(name), io.StringIO(), None
    sys.path[0] = str(path if path.is_dir() else path.parent)
    sys.argv = [name, "--help"]
    known = set(sys.modules)
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    for module in set(sys.modules) - known:  # what lies beside a script has a short name
        if str(getattr(sys.modules[module], "__file__", None)).startswith(sys.path[0]):
            del sys.modules[module]
    if code != 0 or not out.getvalue().lstrip().lower().startswith("usage: "):
        print(f"{name}: {code}, {out.getvalue()[:100]!r}")
"""


def entries() -> list[Path]:
    """The scripts in Python that a user starts: files, and folders with a `__main__.py`."""
    starting = [path for path in (ROOT / "scripts").rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    mine = [path for path in starting if path.name not in INNER and not path.stem.endswith("_peer")]
    return sorted(path.parent if path.name == "__main__.py" else path for path in mine)


def settings() -> dict[str, str]:
    """Variables of a shell in which `.venv/bin/python` is the one that scripts/setup made, which finds the clone."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept if Path(sys.prefix) == ROOT / ".venv" else kept | {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("path", SHELL, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_a_shell_script_says_what_it_does(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([path, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{line}\n" for line in _head(path))
    assert not list(tmp_path.iterdir())


def _head(path: Path) -> list[str]:
    """The comment at the head of a script."""
    lines = path.read_text().splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    assert end, f"{path} says nothing"
    return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]


@pytest.mark.quick
def test_the_scripts_in_python_say_what_they_take(tmp_path: Path) -> None:
    found = [path for path in entries() if _has(NEEDS.get(path.name))]
    assert len(found) > 30
    command = [sys.executable, "-c", _EACH, *map(str, found)]
    done = subprocess.run(command, cwd=tmp_path, env=settings(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    assert not list(tmp_path.iterdir())


def _has(library: str | None) -> bool:
    from importlib.util import find_spec

    return library is None or find_spec(library) is not None
