"""Writes docs/layout.md: the wings in the order that contracts hold, each with its files, from the docstrings.

.venv/bin/python -m scripts.pages.layout
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scripts.arguments import parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/layout.md"

HEAD = """# Layout

*For contributors: which file holds what; to look things up.*

The folders from the top down: each imports only folders below it, those of one row do not import each other, and
nothing imports in a circle (`lint-imports`, contracts in `pyproject.toml`; imports for types and inside of functions
count). `python -m scripts.pages.layout` makes this page from the docstrings; [How it works](architecture.md) explains
the code in the order of the data.
"""


def layout() -> str:
    """Return the page."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["id"] == "wings")
    parts = [
        HEAD,
        "```text",
        *(" | ".join(name.removeprefix("converter.") for name in row.split(" | ")) for row in rows),
    ]
    parts.append("```\n")
    for row in rows:
        for wing in row.split(" | "):
            parts.append(_wing(ROOT / wing.replace(".", "/")))
    return "\n".join(parts)


def _wing(folder: Path) -> str:
    lines = [
        f"## `{folder.relative_to(ROOT)}/`",
        "",
        summary(folder / "__init__.py"),
        "",
        "| there | what it does |",
        "|---|---|",
    ]
    return "\n".join([*lines, *_rows(folder, folder), ""])


def _rows(folder: Path, wing: Path) -> Iterator[str]:
    """Yield the rows of a folder: packages first, each with all that is in it, then modules."""
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_file(), p.name)):
        name = path.relative_to(wing).as_posix()
        if path.is_dir() and (path / "__init__.py").exists():
            yield f"| **`{name}/`** | {summary(path / '__init__.py')} |"
            yield from _rows(path, wing)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield f"| `{name}` | {summary(path)} |"


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line of a table."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    PAGE.write_text(layout())
