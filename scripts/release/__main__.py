"""Writes all that people get of a version into one folder: `.venv/bin/python -m scripts.release OUT`.

The wheel, the Android libraries as a Maven repository, the npm package, the page that learns handwriting as static
files, the notes of the version and the SHA-256 of each file, which `sha256sum --check SHA256SUMS` compares. What it
needs is what `scripts/build_maven` and `scripts/build_npm` need: Maven with JDK 17, and Node 20.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.arguments import parser
from scripts.maven.archives import packed
from scripts.release import changelog
from scripts.release.version import ROOT, current

SUMS, NOTES = "SHA256SUMS", "NOTES.md"
_COMMANDS = {"mvn": "maven", "javac": "openjdk-17-jdk-headless", "node": "nodejs", "npm": "npm"}


def write(out: Path) -> list[Path]:
    """Write the files of the current version into an empty folder, and return their paths.

    Raises:
        ValueError: where the folder holds something, a command is missing, or the changelog is silent on the version.
        CalledProcessError: where a part could not be built; what it said stands in the terminal.
    """
    version = current()
    notes = changelog.section((ROOT / changelog.NAME).read_text(encoding="utf-8"), version)
    if missing := [package for command, package in _COMMANDS.items() if shutil.which(command) is None]:
        raise ValueError(f"needs {', '.join(missing)} (on Debian: apt install {' '.join(missing)})")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is no empty folder")
    # All or nothing: a folder that is half written would look like a release.
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / "made"
        made.mkdir()
        _wheel(made)
        _run("scripts/build_maven", Path(work) / "maven")
        _archive(Path(work) / "maven", made / f"pocketune-{version}-maven.zip")
        _run("scripts/build_npm", made)
        _run("scripts/build_web")
        _archive(ROOT / "web/dist/page", made / f"pocketune-{version}-page.zip")
        (made / NOTES).write_text(f"# Pocketune {version}\n\n{_origin()}\n\n{notes}", encoding="utf-8")
        sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir()))
        (made / SUMS).write_text("".join(sums), encoding="utf-8")
        shutil.copytree(made, out, dirs_exist_ok=True)
    return sorted(out.iterdir())


def _wheel(out: Path) -> None:
    """Build the wheel of what git knows; times in it are those of the commit, so that it has the same bytes again."""
    with tempfile.TemporaryDirectory() as work:
        for name in filter(lambda name: (ROOT / name).is_file(), _git("ls-files", "-z").split("\0")):
            target = Path(work) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        epoch = {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").strip()}
        subprocess.run([*pip, "--wheel-dir", out, work], check=True, env=os.environ | epoch)


def _archive(folder: Path, out: Path) -> None:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    out.write_bytes(packed(files))


def _origin() -> str:
    changed = " with changes that are not committed" if _git("status", "--porcelain") else ""
    return f"Built from {_git('rev-parse', 'HEAD').strip()}{changed}."


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True)


def _run(script: str, *arguments: Path) -> None:
    subprocess.run([ROOT / script, *arguments], check=True, env=os.environ | {"PYTHON": sys.executable})


def main() -> None:
    """Read the arguments and write the files."""
    options = parser(__doc__)
    options.add_argument("out", type=Path, metavar="OUT", help="a folder that is empty, or not there")
    given = options.parse_args()
    try:
        made = write(given.out)
    except ValueError as error:
        options.error(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: nothing written: {Path(error.cmd[0]).name} ended with {error.returncode}, as it says above")
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")


if __name__ == "__main__":
    main()
