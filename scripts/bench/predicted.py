"""What a step costs by the table of phones, against the instructions that the real arm64 library needs for it.

    scripts/arm64/prepare DIR
    .venv/bin/python scripts/bench/predicted.py DIR                                     # the digits
    .venv/bin/python scripts/bench/predicted.py DIR examples.imu:build --scheme full --scheme found/recipe.toml

Counts are exact; they hold the call of the signature too. A scheme is a name, or a recipe that a search found.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from emulated import Emulator
from rich.console import Console
from rich.table import Table

import converter
from converter.cli.resolve import job_of

#: What is compared where nothing else is asked for.
SCHEMES = ("full", "last-3", "pockengine", "bias-only", "lora", "head")


def main() -> None:
    """Builds the programs, counts a step of each and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what scripts/arm64/prepare made")
    parser.add_argument("model", nargs="?", default="digits-cnn")
    parser.add_argument("--scheme", action="append", help="a name, or the recipe of a search; repeat it")
    options = parser.parse_args()
    model = job_of(None, False, model=options.model).model()
    predicted, files = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for scheme in options.scheme or SCHEMES:
            program = converter.build(
                model, update=_update(scheme), optimizer="adam", signatures=("train",), check=False
            )
            file = Path(scratch) / f"{len(files)}.tflite"
            program.write(file)
            files.append(f"{file}:train")
            predicted[scheme] = program.costs["step_cost"]
        counted = Emulator(options.folder.resolve()).instructions(*files)
    table = Table("scheme", "predicted", "counted", "off by")
    for (scheme, cost), count in zip(predicted.items(), counted, strict=True):
        table.add_row(scheme, f"{cost:,}", f"{count:,}", f"{cost / count - 1:+.1%}")
    Console().print(table)


def _update(scheme: str) -> Any:
    return tomllib.loads(Path(scheme).read_text())["update"] if scheme.endswith(".toml") else scheme


if __name__ == "__main__":
    main()
