"""Files out of Debian's packages, without installing them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from converter.engines.tools import run
from converter.errors import UsageError

_ADVICE = "this is for Debian and Ubuntu; apt-get update first"


def fetch(packages: Sequence[str], files: Iterable[str], folder: Path) -> None:
    """Puts files of packages, by their names, into a folder: all or none.

    Raises:
        UsageError: this is no Debian or Ubuntu, a package cannot be had, or lacks a file.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
        unpacked, ready = Path(temporary) / "unpacked", Path(temporary) / "ready"
        ready.mkdir()
        # As who runs it, not as apt's own user, who may not write here.
        run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages], Path(temporary), _ADVICE)
        for package in Path(temporary).glob("*.deb"):
            run(["dpkg", "-x", str(package), str(unpacked)], Path(temporary), _ADVICE)
        for name in files:
            found = next(iter(sorted(unpacked.rglob(name))), None)
            if found is None:
                raise UsageError(f"Debian's packages {', '.join(packages)} hold no {name}: is this another release?")
            shutil.copy(found, ready / name)  # of a link what it points to
        shutil.rmtree(folder, ignore_errors=True)
        ready.rename(folder)
