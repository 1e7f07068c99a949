"""The measurements are programs beside each other, not a package: their folders are on the path."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path += [str(BENCH), str(BENCH / "peers"), str(BENCH / "accuracy"), str(BENCH / "classes"), str(BENCH / "zoo")]
