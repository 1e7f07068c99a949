"""The project's own files, for tests that read them as text."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sources(*folders: str) -> list[Path]:
    """The Python files of the project in some of its folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def scripts() -> list[Path]:
    """The scripts of the project that are not Python by their names."""
    folders = (ROOT / "scripts", ROOT / ".ci")
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return [path for path in files if path.suffix in ("", ".sh")]
