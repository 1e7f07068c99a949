"""The machine and the commit that were measured, and JSON files of results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "amx_tile", "asimd", "asimddp", "i8mm")


def machine() -> dict[str, Any]:
    """Processor, what it can do, and the versions of what our side runs on."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    flags = facts.get("flags", facts.get("Features", "")).split()
    return {
        "cpu": facts.get("model name", platform.machine()),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "versions": {name: version(name) for name in ("ai-edge-litert", "jax", "numpy")},
    }


def checkout() -> tuple[str | None, bool | None]:
    """Return the commit of this checkout, and whether files differ from it; None where git does not say."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain")
    return git("rev-parse", "HEAD"), None if status is None else bool(status)


def write(file: Path, result: dict[str, Any]) -> None:
    """Stores a result, in folders that are made if need be; each of its rows is a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    said = json.dumps({name: value for name, value in result.items() if name != "rows"})
    rows = ",\n  ".join(map(json.dumps, result["rows"]))
    file.write_text(f'{said[:-1]}, "rows": [\n  {rows}\n]}}\n')
