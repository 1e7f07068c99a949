"""Trains the inference files that real packages ship: which of them do, and how exactly.

    .venv/bin/python scripts/bench/tflite_files                    # fetches 300 MB once; an hour of one core
    .venv/bin/python scripts/bench/tflite_files --only landmark    # those whose name holds that

The packages are pinned in files.toml and unpacked into .models/tflite. What was found is kept in out/tflite_files.jsonl
a line a file, and is not checked again unless `--again` says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from packages import HERE, Listed, listed

ROOT = HERE.parents[2]
KEPT = ROOT / "out" / "tflite_files.jsonl"
#: What is asked of a file: the largest error of each check.
LIMITS = {"infer": 1e-5, "head": 1e-5, "deeper": 2e-3}


def main() -> None:
    """Check the files and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--again", action="store_true", help="check what was checked already, too")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for a file")
    args = parser.parse_args()
    KEPT.parent.mkdir(exist_ok=True)
    kept = {} if args.again or not KEPT.exists() else _kept()
    rows = []
    for file in listed():
        if args.only not in file.name:
            continue
        if file.name not in kept:
            kept[file.name] = _checked(file, args.timeout)
            with KEPT.open("a") as journal:
                journal.write(json.dumps({"name": file.name, **kept[file.name]}) + "\n")
        rows.append(_row(file.name, kept[file.name]))
        print(rows[-1], flush=True)
    print(f"{sum(row.endswith('| yes |') for row in rows)} of {len(rows)} files pass", file=sys.stderr)


def _kept() -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in map(json.loads, KEPT.read_text().splitlines())}


def _checked(file: Listed, timeout: int) -> dict[str, Any]:
    """Return what a process of its own finds: one that crashes ends alone."""
    command = [sys.executable, str(HERE / "check.py"), str(file.fetched()), json.dumps(file.said)]
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"crash": f"over {timeout} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"crash": done.stderr[-2000:] or str(done.returncode)}
    return json.loads(lines[-1])


def _row(name: str, found: dict[str, Any]) -> str:
    """A row of the table: the file, the error of each check or why there is none, and whether it passes."""
    cells, passes = [], "crash" not in found
    for check, limit in LIMITS.items():
        value = found.get(check, found.get("crash", "").strip().splitlines()[-1:])
        value = value[0] if isinstance(value, list) and value else value
        is_number = isinstance(value, float | int)
        passes &= is_number and value <= limit
        cells.append(f"{value:.1e}" if is_number else " ".join(str(value).split())[:120])
    return f"| {name} | {' | '.join(cells)} | {'yes' if passes else 'no'} |"


if __name__ == "__main__":
    main()
