"""Writes the vectors beside this file: manifests, and whether a reader is to take them.

    .venv/bin/python -m tests.manifest.make [--programs]

The bad ones, and some of the good ones, are good ones with a change (changes.py). --programs also builds the programs
of programs.py anew and writes their manifests: after a change of what a manifest says, as older ones are read too.
places.json says, by the name of a bad one, a part of what its refusal says in each language.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

from tests.manifest.changes import BAD, GOOD
from tests.manifest.edits import Bad

HERE = Path(__file__).parent


def vectors() -> dict[str, bytes]:
    """Return what the files of the changed ones are to hold, by their path from here."""
    sources: dict[str, Any] = {}
    found = {}
    for folder, changed in (("bad", BAD), ("good", GOOD)):
        for name, bad in changed.items():
            if bad.of not in sources:
                sources[bad.of] = json.loads((HERE / f"good/{bad.of}.json").read_bytes())
            found[f"{folder}/{name}.json"] = _changed(sources[bad.of], bad)
    places = {name: bad.place for name, bad in BAD.items()}
    return {**found, "places.json": (json.dumps(places, indent=1, sort_keys=True) + "\n").encode()}


def _changed(source: Any, bad: Bad) -> bytes:
    manifest = copy.deepcopy(source)
    made = bad.change(manifest)
    return made if isinstance(made, bytes) else json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode()


def main() -> None:
    """Write all of them."""
    if "--programs" in sys.argv:
        from tests.manifest.programs import PROGRAMS

        for name, build in PROGRAMS.items():
            (HERE / f"good/{name}.json").write_bytes(build().manifest.to_bytes())
    kept = {*vectors(), *(f"good/{path.name}" for path in HERE.glob("good/*.json"))}
    for path in HERE.glob("bad/*.json"):
        if f"bad/{path.name}" not in kept:
            path.unlink()
    for name, data in vectors().items():
        (HERE / name).write_bytes(data)


if __name__ == "__main__":
    main()
