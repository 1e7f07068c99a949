"""Arguments of scripts: what a run writes or reads at its end is looked at before it begins."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that describes a script by its docstring."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def existing(text: str) -> Path:
    """Return the path of a file that is there. Raise ArgumentTypeError otherwise."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def writable(text: str) -> Path:
    """Return the path of a file to write; its folder is made. Raise ArgumentTypeError where it cannot be."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error}") from error
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path
