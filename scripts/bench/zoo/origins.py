"""What packages say of themselves: their licence and where they come from."""

from __future__ import annotations

import re
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from examples.weights.packages import FOLDER

#: First lines of licences that packages carry where their metadata name none.
_TITLES = ("MIT License", "Apache License", "Apache Software License 2.0", "BSD 3-Clause License")
_NO_NAME = ("", "UNKNOWN")


class Package(NamedTuple):
    """A package: name and version, its licence, and a page of it."""

    name: str
    licence: str
    page: str


def package(requirement: str, folder: Path = FOLDER) -> Package:
    """Return what a package says: of those that `scripts/pretrained` has unpacked, or an installed one by its name.

    Args:
        requirement: `mlxtend==0.25.0`, or `scikit-learn`.
        folder: where packages are unpacked.

    Raises:
        FileNotFoundError: it is not there.
    """
    name, _, version = requirement.partition("==")
    if not version:
        found = distribution(name)
        version, text = found.version, found.read_text("METADATA") or ""
        licences = [file.read_text() for file in found.files or () if "LICENSE" in file.name or "COPYING" in file.name]
    else:
        root = folder / requirement
        places = [*root.glob("*.dist-info/METADATA"), *root.glob("*/PKG-INFO")]
        if not places:
            raise FileNotFoundError(f"{requirement} is not here yet: run scripts/pretrained")
        text = places[0].read_text()
        licences = [file.read_text() for file in sorted(places[0].parent.rglob("LICENSE*")) if file.is_file()]
    pages = re.findall(r"^(?:Project-URL: [^,]*,|Home-page:) *(https?://\S+)", text, re.MULTILINE)
    return Package(
        f"{name} {version}", licence_of(text, licences), pages[0] if pages else f"https://pypi.org/project/{name}/"
    )


def licence_of(metadata: str, licences: list[str]) -> str:
    """Return the licence that a package names: in its metadata, else by the title of its licence file."""
    headers = HeaderParser().parsestr(metadata)
    for field in ("License-Expression", "License"):
        value = (headers[field] or "").splitlines()[0] if headers[field] else ""
        if value.strip() not in _NO_NAME:
            return value.removeprefix("SPDX-License-Identifier: ").strip()
    of_classes = [value for value in headers.get_all("Classifier") or () if value.startswith("License ::")]
    if of_classes:
        return of_classes[0].rpartition(":: ")[2]
    for text in licences:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        if first in _TITLES:
            return first
    return "not named by the package"
