"""Sets the version everywhere it stands and cuts the changelog: `python -m scripts.release.version 0.3.0`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from scripts.arguments import parser
from scripts.release import changelog

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = r"(?P<version>\d+\.\d+\.\d+)"
#: How the version stands in a file of any kind; the changelog alone tells of older ones.
_PLACES = re.compile(
    "|".join(
        [
            r'(?<=\nname = "pocketune"\nversion = ")@',
            r'(?<="name": "pocketune-web",\n  "version": ")@',
            r'(?<="name": "pocketune-web",\n      "version": ")@',
            r"(?<=<artifactId>pocketune-android</artifactId>\n  <version>)@",
            r"(?<=<artifactId>pocketune-android</artifactId><version>)@",
            r"(?<=\ntitle: Pocketune\nversion: )@",
            r"(?<=\bversionName = \")@",
            r"(?<=\bversionName=')@",
            r"(?<=\bpocketune-)@(?=-py3-|\.tgz|-maven\.zip|-page\.zip)",
            r"(?<=\borg\.pocketune:trainer:)@",
            r"(?<=\borg\.pocketune:federated:)@",
            r"(?<=\borg\.pocketune:runtime-tflite:)@",
        ]
    ).replace("@", r"\d+\.\d+\.\d+")
)
#: Android installs an app over another only where this number is not smaller.
_CODES = re.compile(
    r"(?<=<version\.code>)\d+"
    r"|(?<=\bversionCode = )\d+(?=\n +versionName = \"\d+\.\d+\.\d+\")"
    r"|(?<=\bversionCode=')\d+(?=' versionName='\d+\.\d+\.\d+')"
)
_ANY = re.compile(r"\d+\.\d+\.\d+")
_RELEASED = re.compile(r"(?<=\ndate-released: )\S+")


@dataclass(frozen=True)
class Place:
    """A place where the version stands.

    Attributes:
        path: of the file, from the root.
        line: counted from 1.
        version: that stands there.
    """

    path: str
    line: int
    version: str


def current() -> str:
    """Return the version of the sources, as pyproject.toml has it."""
    found = re.search(rf'^version = "{_NUMBER}"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, "pyproject.toml has no version"
    return found["version"]


def code(version: str) -> int:
    """Return the number that Android compares: 203 for 0.2.3."""
    major, minor, patch = map(int, version.split("."))
    return major * 10000 + minor * 100 + patch


def places() -> list[Place]:
    """Return every place where the version stands, in files that git knows."""
    return [
        Place(path.relative_to(ROOT).as_posix(), text.count("\n", 0, found.start()) + 1, found[0])
        for path, text in _texts()
        for found in _ANY.finditer(text)
        if _PLACES.match(text, found.start())
    ]


def write(version: str, day: date) -> list[Path]:
    """Set the version in all places, and cut the changelog.

    Args:
        version: the new one, later than the current one.
        day: of the release.

    Returns:
        The files that changed.

    Raises:
        ValueError: where the version is no later one, or the changelog tells of no change.
    """
    if re.fullmatch(_NUMBER, version) is None:
        raise ValueError(f"a version is three numbers, as in 0.3.0, not {version}")
    if code(version) <= code(current()):
        raise ValueError(f"the version is {current()} already: {version} is not later")
    log = ROOT / changelog.NAME
    cut = changelog.cut(log.read_text(encoding="utf-8"), version, day)
    changed = {log: cut}
    for path, text in _texts():
        new = _RELEASED.sub(day.isoformat(), _CODES.sub(str(code(version)), _versioned(text, version)))
        if new != text:
            changed[path] = new
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    return sorted(changed)


def _versioned(text: str, version: str) -> str:
    return _ANY.sub(lambda found: version if _PLACES.match(text, found.start()) else found[0], text)


def _texts() -> Iterator[tuple[Path, str]]:
    """Yield the text files in which a version may stand, with what they hold."""
    command = ["git", "grep", "-zlIE", r"[0-9]\.[0-9]+\.[0-9]"]
    listing = subprocess.check_output(command, cwd=ROOT, text=True)
    # What tells of the past, looks for the places, and tests that.
    past = {changelog.NAME, Path(__file__).relative_to(ROOT).as_posix(), "tests/test_release.py"}
    for name in sorted(set(filter(None, listing.split("\0"))) - past):
        try:
            yield ROOT / name, (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # of another encoding: no file of ours


def main() -> None:
    """Read the arguments and set the version."""
    options = parser(__doc__)
    options.add_argument("version", metavar="VERSION", help="the new one, such as 0.3.0")
    given = options.parse_args()
    try:
        changed = write(given.version, date.today())
    except ValueError as error:
        options.error(str(error))
    print(*(path.relative_to(ROOT) for path in changed), sep="\n")


if __name__ == "__main__":
    main()
