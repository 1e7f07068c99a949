"""The wheel, installed as its users have it: in an environment in which nothing of the clone is found.

What the wheel needs is found in the environment that runs the tests, by a `.pth` file. Python does not read the `.pth`
files that lie there, so a clone that is installed there to be edited is out of reach.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tree import ROOT

#: What a wheel is built from.
_SOURCES = (
    *("LICENSE", "README.md", "docs/errors", "pocketune", "pyproject.toml", "scripts/__init__.py"),
    *("scripts/distribution.py", "converter", "jax_frontend"),
)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel.

    Attributes:
        wheel: the file.
        folder: of the environment.
    """

    wheel: Path
    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin/python"

    @property
    def command(self) -> Path:
        """The command line tool."""
        return self.folder / "bin/pocketune"

    def run(self, *command: str | Path, at: Path) -> str:
        """Run a command in a folder, as a user's shell would; return its stdout. It must end with 0."""
        return self.ran(*command, at=at).stdout

    def ran(self, *command: str | Path, at: Path) -> subprocess.CompletedProcess[str]:
        """Return all that came of the same."""
        done = subprocess.run(command, cwd=at, env=self.settings(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done

    def settings(self) -> dict[str, str]:
        """Return the variables of such a shell."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KERAS_BACKEND")}
        return kept | {"PATH": os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])}


def install(folder: Path) -> Installed:
    """Return the environment in a folder that the processes of a test run share; the first one makes it."""
    made = Installed(folder / "pocketune-0.2.0-py3-none-any.whl", folder / "venv")
    with (folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.command.exists():
            build_wheel(folder)
            _make(made)
    return made


def build_wheel(folder: Path) -> None:
    """Build the wheel of the clone, its files as they are, into a folder."""
    # From a copy: setuptools leaves its build folder beside the sources.
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_SOURCES]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source, target = ROOT / name, folder / "source" / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, folder / "source"], check=True)


def _make(made: Installed) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made.folder], check=True)
    (packages,) = made.folder.glob("lib/python*/site-packages")
    theirs = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in theirs))
    pip = [sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--ignore-installed", made.wheel], check=True)
