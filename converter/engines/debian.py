"""Files out of Debian's packages, without installing them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from converter.errors import UsageError

#: Seconds that a download may take.
LIMIT = 900


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
        _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages], temporary)
        for package in Path(temporary).glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(unpacked)], temporary)
        for name in files:
            found = next(iter(sorted(unpacked.rglob(name))), None)
            if found is None:
                raise UsageError(f"Debian's packages {', '.join(packages)} hold no {name}: is this another release?")
            shutil.copy(found, ready / name)  # of a link what it points to
        shutil.rmtree(folder, ignore_errors=True)
        ready.rename(folder)


def _run(command: Sequence[str], where: str) -> None:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} is needed, as Debian and Ubuntu have it: {error}") from None
    if done.returncode:
        raise UsageError(f"{' '.join(command)} failed (apt-get update first?): {done.stderr.strip()[-400:]}")
