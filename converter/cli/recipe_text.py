"""A recipe as the text of its TOML file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.cli.recipe import Recipe, is_path

#: Paths in a recipe are as seen from its folder.
_PATHS = ("model", "calibration")


def recipe_text(recipe: Recipe, folder: Path, said: str) -> str:
    """Return the file of a recipe in a folder.

    Args:
        recipe: what it is to say; its paths as seen from here.
        folder: where the file will be.
        said: a comment for its top.
    """
    entries = recipe.entries()
    for name in entries.keys() & _PATHS:
        if name != "model" or is_path(entries[name]):
            entries[name] = Path(os.path.relpath(entries[name], folder)).as_posix()
    lines = [f"# {line}" for line in said.splitlines()]
    lines += [f"{name} = {_toml(value)}" for name, value in entries.items() if not isinstance(value, Mapping)]
    for name, value in entries.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{_toml(str(key))} = {_toml(each)}" for key, each in value.items())]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    """Return a value in TOML, whose strings JSON's are."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
