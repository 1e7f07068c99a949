"""Makes docs/performance.md from the JSON files of the measurements.

    .venv/bin/python scripts/bench/performance

They are in scripts/bench/results, where `--json` of a measurement writes one anew. A file's `kind` says what it holds:
`peers`, `growth`, `operators` and `products` come from scripts/bench/peers, `arm64` from the counts of instructions and
cache misses, `building` from scripts/bench/building.py. Several files of one kind are one section each, in the order of
their names.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scripts.arguments import existing, writable

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
DOCUMENT = HERE.parents[2] / "docs" / "performance.md"
KINDS = ("peers", "growth", "operators", "products", "arm64", "building")


def main() -> None:
    """Reads the results and writes the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=existing, nargs="*", help="what --json wrote, if not there")
    parser.add_argument("--output", type=writable, default=DOCUMENT)
    args = parser.parse_args()
    files = args.files or sorted(RESULTS.glob("*.json"), key=lambda file: file.stem)
    results = [json.loads(file.read_text()) for file in files]
    for file, result in zip(files, results, strict=True):
        if result.get("kind") not in KINDS:
            parser.error(f"{file} is no result of a measurement: its kind is none of {', '.join(KINDS)}")
    args.output.write_text(document(results))


def document(results: list[dict[str, Any]]) -> str:
    """Return the text of the document."""
    # Markdown, not HTML: nothing is to be escaped.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"columns": columns, "figure": figure, "megabytes": lambda b: f"{b / 1e6:.0f}"}
    sections = {kind: [result for result in results if result["kind"] == kind] for kind in KINDS}
    return environment.get_template("performance.md.jinja").render(**sections)


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the keys of rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def figure(value: Any) -> str:
    """Return a cell of a table whose columns the measurement chose: large numbers in millions."""
    if isinstance(value, (int, float)) and abs(value) >= 1e6:
        return f"{value / 1e6:,.0f} M"
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    main()
