"""Writes the records of the manifest for the readers in Kotlin and TypeScript: see scripts/manifest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from converter.program.manifest.schema import SCHEMA
from scripts.arguments import parser
from scripts.readers import kotlin, typescript

ROOT = Path(__file__).parents[2]
#: What is written, and with what.
WRITTEN = {
    "android_app/trainer/src/main/kotlin/org/pocketune/trainer/Manifest.kt": ("Manifest.kt.j2", kotlin),
    "android_app/trainer/src/main/kotlin/org/pocketune/trainer/ManifestFields.kt": ("ManifestFields.kt.j2", kotlin),
    "android_app/trainer/src/main/kotlin/org/pocketune/trainer/ManifestRecords.kt": ("ManifestRecords.kt.j2", kotlin),
    "web/trainer/manifest/manifest-limits.ts": ("manifest-limits.ts.j2", typescript),
    "web/trainer/manifest/manifest-records.ts": ("manifest-records.ts.j2", typescript),
    "web/trainer/manifest/manifest-rules.ts": ("manifest-rules.ts.j2", typescript),
}


def rendered(schema: Any = SCHEMA) -> Iterator[tuple[str, str]]:
    """Yield each file's path from the root of the repository, and its text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
    for path, (template, language) in WRITTEN.items():
        yield path, environment.get_template(template).render(schema=schema, **language.words(schema))


def stale(schema: Any = SCHEMA, root: Path = ROOT) -> list[str]:
    """Return the files that are not what would be written."""
    return [path for path, text in rendered(schema) if (root / path).read_text() != text]


def main() -> int:
    """Write all of them, or say which are not as they would be written."""
    options = parser(__doc__)
    options.add_argument("--check", action="store_true", help="write nothing; fail where a file is another")
    if options.parse_args().check:
        for path in (found := stale()):
            print(f"{path}: not what schema.toml says: run scripts/manifest")
        return 1 if found else 0
    for path, text in rendered():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
