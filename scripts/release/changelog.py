"""The changelog: what changed in a version, and the cut that makes a version of what is unreleased."""

from __future__ import annotations

import re
from datetime import date

NAME = "CHANGELOG.md"
_UNRELEASED = "## Unreleased\n"


def section(text: str, version: str) -> str:
    """Return what the changelog says of a version, without its heading.

    Raises:
        ValueError: where it says nothing of it.
    """
    found = re.search(rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ValueError(f"{NAME} says nothing of {version}: `python -m scripts.release.version` cuts it")
    return found[1].strip() + "\n"


def cut(text: str, version: str, day: date) -> str:
    """Return the changelog with what is unreleased as a version, and nothing unreleased.

    Raises:
        ValueError: where nothing is.
    """
    head, heading, rest = text.partition(_UNRELEASED)
    if not heading or re.match(r"\s*(## |\Z)", rest):
        raise ValueError(f"{NAME} tells of no change that is not released")
    return f"{head}{heading}\n## {version} - {day.isoformat()}\n{rest}"
