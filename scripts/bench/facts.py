"""The machine that was measured on, and JSON files of results."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


def write(file: Path, result: dict[str, Any]) -> None:
    """Stores a result, in folders that are made if need be; each of its rows is a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    said = json.dumps({name: value for name, value in result.items() if name != "rows"})
    rows = ",\n  ".join(map(json.dumps, result["rows"]))
    file.write_text(f'{said[:-1]}, "rows": [\n  {rows}\n]}}\n')
