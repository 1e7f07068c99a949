"""Files out of Debian's packages, without installing them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from converter.runtime.engines.tools import replaced, run
from converter.support.errors import UsageError

_ADVICE = "this is for Debian and Ubuntu; apt-get update first"


def fetch(packages: Sequence[str], files: Iterable[str], folder: Path) -> None:
    """Puts files of packages, by their names, into a folder: all or none.

    Raises:
        UsageError: this is no Debian or Ubuntu, a package cannot be had, or lacks a file.
    """
    with replaced(folder) as (temporary, ready):
        unpacked = temporary / "unpacked"
        # As who runs it, not as apt's own user, who may not write here.
        run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages], temporary, _ADVICE)
        for package in temporary.glob("*.deb"):
            run(["dpkg", "-x", str(package), str(unpacked)], temporary, _ADVICE)
        for name in files:
            found = next(iter(sorted(unpacked.rglob(name))), None)
            if found is None:
                raise UsageError(
                    f"Debian's packages {', '.join(packages)} hold no {name}: is this another release?", page="engines"
                )
            shutil.copy(found, ready / name)  # of a link what it points to
