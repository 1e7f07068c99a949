"""How the wheel is made: all of it lies in the package `pocketune`, so that no name of a user's own meets ours.

The folders converter/ and jax_frontend/ become `pocketune.converter` and `pocketune.jax_frontend`; where they import
each other, or name a module of each other in a string, that is prefixed. An editable installation uses the folders as
they are.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

#: The folders that become parts of the package.
PARTS = ("converter", "jax_frontend")
#: Of the documentation, what the command `explain` shows.
PAGES = Path("docs/errors")

_MODULE = re.compile(rf"({'|'.join(PARTS)})(\.\w+)*")


class BuildPy(build_py):
    """Builds the wheel's files."""

    def run(self) -> None:
        """Put the parts into the package."""
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "pocketune"
        for part in PARTS:
            shutil.rmtree(package / part, ignore_errors=True)
            shutil.move(package.parent / part, package / part)
        for path in package.rglob("*.py"):
            path.write_text(prefixed(path.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.copytree(PAGES, package / "errors", dirs_exist_ok=True)


class EggInfo(egg_info):
    """Writes the metadata."""

    def run(self) -> None:
        """Name the one package that the wheel holds."""
        super().run()
        (Path(self.egg_info) / "top_level.txt").write_text("pocketune\n", encoding="utf-8")


def prefixed(source: str) -> str:
    """Return the source of a module with every module of ours named as a part of `pocketune`.

    Raises:
        ValueError: a module is imported in a way that cannot be written so.
    """
    lines = source.encode().splitlines(keepends=True)
    for line, column, old, new in sorted(_edits(ast.parse(source)), reverse=True):
        text = lines[line - 1]
        at = text.find(old, column)
        if at < 0:
            raise ValueError(f"line {line}: {old!r} is not where it is expected: {text!r}")
        lines[line - 1] = text[:at] + new + text[at + len(old) :]
    return b"".join(lines).decode()


def _edits(tree: ast.Module) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Line, column from which on it is searched, what is there, what comes in its place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and _MODULE.fullmatch(node.module):
            old, new = f"from {node.module}", f"from pocketune.{node.module}"
            yield node.lineno, node.col_offset, old.encode(), new.encode()
        elif isinstance(node, ast.Import) and any(_MODULE.fullmatch(alias.name) for alias in node.names):
            name = node.names[0].name
            if len(node.names) > 1 or node.names[0].asname:
                raise ValueError(f"line {node.lineno}: import one module of ours alone, and by its own name")
            if "." in name and any(isinstance(n, ast.Name) and n.id in PARTS for n in ast.walk(tree)):
                raise ValueError(f"line {node.lineno}: {name} is imported and used by its full name: import from it")
            new = f"import pocketune.{name}" if "." in name else f"from pocketune import {name}"
            yield node.lineno, node.col_offset, f"import {name}".encode(), new.encode()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            yield node.lineno, node.col_offset, node.value.encode(), f"pocketune.{node.value}".encode()
