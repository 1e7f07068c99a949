"""Node data for Google's Model Explorer: what this program knows of each operator, over the tool's own drawing.

The tool names a graph after its subgraph and a node after the operator's place in it. One file is one column of data:
`{graph: {"results": {node: {"value": ...}}, "name": ..., "gradient": [...]}}` (its `node_data_builder`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.support.files import write_atomically
from converter.tools.report.contents import ReportContents, Run

#: White to red, for costs.
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d8432f"}]
_PHASES = {"forward": "#bcd6f5", "backward": "#f6c9b6", "update": "#bfe6cd"}


def overlays(contents: ReportContents) -> dict[str, dict[str, Any]]:
    """Return the files by name, as JSON."""
    calls = contents.account.calls
    columns: dict[str, tuple[str, Mapping[str, Sequence[Any]]]] = {
        "layer": ("layer", {name: [o.layer or "(compiler)" for o in contents.origins[name]] for name in calls}),
        "cost": ("cost on the target", {name: call.costs for name, call in calls.items()}),
        "flops": ("FLOPs", {name: call.flops for name, call in calls.items()}),
    }
    files: dict[str, dict[str, Any]] = {
        "phase": {
            name: {
                "name": "phase",
                "results": {str(i): {"value": o.phase, "bgColor": _PHASES[o.phase]} for i, o in enumerate(origins)},
            }
            for name, origins in contents.origins.items()
            if name in calls
        }
    }
    for file, (title, data) in columns.items():
        gradient = {} if file == "layer" else {"gradient": _GRADIENT}
        files[file] = {
            name: {"name": title, "results": {str(i): {"value": v} for i, v in enumerate(values)}, **gradient}
            for name, values in data.items()
        }
    files["memory"] = {
        name: {"name": "bytes alive", "results": _alive(run), "gradient": _GRADIENT}
        for name, run in contents.runs.items()
    }
    stored = contents.program.stored
    return {file: {stored(name): drawn for name, drawn in graphs.items()} for file, graphs in files.items()}


def _alive(run: Run) -> dict[str, Any]:
    """Return bytes alive while each operator runs, by its place in the file."""
    return {str(place): {"value": nbytes} for place, nbytes in sorted(zip(run.places, run.alive(), strict=True))}


def write_overlays(contents: ReportContents, folder: str | os.PathLike) -> list[Path]:
    """Writes the files into a folder, which is made. Raises UsageError when that cannot be done."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {os.fspath(folder)}: {error.strerror or error}", page="reports") from None
    paths = []
    for name, data in overlays(contents).items():
        paths.append(Path(folder) / f"{name}.json")
        write_atomically(paths[-1], json.dumps(data, ensure_ascii=False).encode())
    return paths
