"""Makes what the app and the page carry, and does nothing when it is there.

scripts/build_app_assets [--out DIR] [--soc MODEL ...]
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from converter.support.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "android_app" / "app" / "target"
SOURCES = ("scripts/app_assets", "examples", "converter", "jax_frontend", "constraints.txt")


def main() -> None:
    """Writes the assets and the fixtures, unless they are there already."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", default=TARGET, help="default: android_app/app/target")
    parser.add_argument("--soc", action="append", metavar="MODEL", default=[], help="compile for its NPU besides")
    arguments = parser.parse_args()
    socs = sorted(set(arguments.soc))
    stamp, sources = arguments.out / "assets.sha256", " ".join([digest_of_sources(), *socs])
    if stamp.exists() and stamp.read_text() == sources:
        return
    from scripts.app_assets.assets import write  # Keras and JAX, which take seconds

    stamp.unlink(missing_ok=True)
    try:
        write(arguments.out, socs)
    except UsageError as error:
        parser.error(str(error))
    stamp.write_text(sources)


def digest_of_sources() -> str:
    """Of all that the assets are made from."""
    digest = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".toml", ".txt"):
                digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
