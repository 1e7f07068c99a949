"""The field of an option: its default, and what the command line and recipes say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any


def option(
    default: Any,
    help: str = "",
    *,
    entry: Any = None,
    shown: str | None = None,
    choices: Sequence[str] = (),
    in_manifest: bool = False,
) -> Any:
    """Declare an option.

    Args:
        default: its value where nothing is asked.
        help: for the command line; without any it is not there.
        entry: its type in a recipe, None where it has no entry.
        shown: the default in words, for the command line.
        choices: its values, where they are few.
        in_manifest: whether the file says it.
    """
    said = {"help": help, "entry": entry, "shown": shown, "choices": tuple(choices)}
    return field(default=default, metadata={**said, "in_manifest": in_manifest})
