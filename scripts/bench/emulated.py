"""The arm64 libraries under emulation: instructions and cache misses of a program's signatures."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COUNTER = Path(__file__).resolve().parents[1] / "arm64" / "count.py"
#: What scripts/arm64 prepares: LiteRT's wheel, and the library of Android.
LIBRARIES = ("litert", "android")


@dataclass(frozen=True)
class Emulator:
    """A library in the folder that scripts/arm64/prepare (and prepare_android) made.

    Attributes:
        folder: the folder.
        library: one of `LIBRARIES`.
        cpu: which core's kernels run.
        xnnpack: off for LiteRT's kernels alone.
    """

    folder: Path
    library: str = "litert"
    cpu: str = "cortex-a76"
    xnnpack: bool = True

    def instructions(self, *programs: str) -> list[int]:
        """Return the cost of one invocation of each, warmed up.

        Args:
            programs: `FILE` or `FILE:SIGNATURE`.
        """
        return [line["COUNT"] for line in self._counted("instructions", programs)]

    def caches(self, *programs: str) -> list[dict[str, int]]:
        """Data accesses of one invocation of each, warmed up, and the misses: `accesses`, `l1`, `l2`, `l3`."""
        return self._counted("caches", programs)

    def _counted(self, what: str, programs: Sequence[str]) -> list[dict[str, int]]:
        how = {"litert": [self.folder / "python", COUNTER], "android": [self.folder / "android"]}[self.library]
        environment = os.environ | {"COUNT": what, "CPU": self.cpu, "XNN": str(int(self.xnnpack))}
        ran = subprocess.run([*how, *programs], capture_output=True, text=True, env=environment, check=False)
        counted = [read(line) for line in ran.stderr.splitlines() if line.startswith(("COUNT ", "CACHES "))]
        if len(counted) != len(programs):
            raise SystemExit(f"{self.library}: only {len(counted)} of {programs} counted:\n{ran.stderr[-2000:]}")
        return counted


def read(line: str) -> dict[str, int]:
    """Return the figures of a line of a plugin: `COUNT 12 ldst=3` or `CACHES accesses=12 l1=3`."""
    return {name: int(value) for name, value in re.findall(r"([\w./-]+)[ =](\d+)", line)}
