"""Literals of C++: arrays of bytes, strings, numbers and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import inf

#: Bytes of a line of an array, and of a string.
_BYTES, _TEXT = 24, 96
_KEYWORDS = {
    "and", "auto", "bool", "break", "case", "catch", "char", "class", "const", "continue", "default", "delete", "do",
    "double", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline",
    "int", "long", "mutable", "namespace", "new", "not", "operator", "or", "private", "protected", "public", "register",
    "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try",
    "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "while", "xor",
}  # fmt: skip


def array(data: bytes | memoryview) -> str:
    """Return bytes as the lines of an initializer."""
    lines = (bytes(data[i : i + _BYTES]) for i in range(0, len(data), _BYTES))
    return "\n".join("    " + ",".join(map(str, line)) + "," for line in lines)


def string(text: str) -> str:
    """Return a text as string literals, one a line: UTF-8, of which nothing but plain ASCII stands as it is."""
    data = text.encode()
    parts = [data[i : i + _TEXT] for i in range(0, len(data), _TEXT)] or [b""]
    return "\n".join(f'    "{"".join(map(_character, part))}"' for part in parts)


def _character(byte: int) -> str:
    """Return a byte within a literal: what is not plain in octal digits, which end after three."""
    plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"


def number(value: float | None) -> str:
    """Return a float32; the largest there is in the place of an infinite one, and 0 of None."""
    if value is None:
        return "0.0f"
    if value in (inf, -inf):
        return "3.40282347e+38f" if value > 0 else "-3.40282347e+38f"
    return f"{value:.9g}f" if any(c in f"{value:.9g}" for c in ".e") else f"{value:.9g}.0f"


def truth(value: bool) -> str:
    """Return a truth value."""
    return "true" if value else "false"


def names(texts: Iterable[str]) -> list[str]:
    """Return names of C++ for texts, each a different one."""
    found: list[str] = []
    for text in texts:
        name = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_") or "value"
        if name[0].isdigit() or name in _KEYWORDS:
            name = f"_{name}" if name not in _KEYWORDS else f"{name}_"
        while name in found:
            name += "_"
        found.append(name)
    return found


def rows(lines: Sequence[str]) -> str:
    """Return the elements of an initializer, one a line."""
    return "\n".join(f"    {line}," for line in lines)
