"""Places in a module: the layer's path and the line of its code that a node of an exported graph comes from."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

_OWN = str(Path(__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class Place(NamedTuple):
    """A place in the user's module; empty where unknown.

    Attributes:
        layer: the path of the module, as in `state_dict()`.
        source: `file:line`.
        function: the name of the function.
    """

    layer: str
    source: str
    function: str


def place_of(node: Any) -> Place:
    """Return where a node comes from: the innermost module, and the innermost line outside of PyTorch."""
    stack = node.meta.get("nn_module_stack") or {}
    layer = ""
    for path, _ in stack.values():
        layer = path
    layer = re.sub(r"^L\['self'\]\.?", "", str(layer))
    source, function = "", ""
    for file, line, name in _FRAME.findall(node.meta.get("stack_trace") or ""):
        if place := place_in(file, int(line)):
            source, function = place, name
    return Place(layer, source, function)


def place_in(file: str, line: int) -> str:
    """Return `file:line` of the user's code; nothing of PyTorch's own, or of this package."""
    return "" if file.startswith((_torch(), _OWN, "<")) else f"{_short(file)}:{line}"


@cache
def _torch() -> str:
    return str(Path(torch.__file__).parent)


def _short(path: str) -> str:
    """The path as the user would type it: relative where it lies under the working directory."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
