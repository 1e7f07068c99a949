"""Operator origins, kept in the program file for profiling and debugging.

The metadata entry `pocketune.origins` is JSON: `layers`, all names that occur, and `signatures`, for each signature
its operators in order as runs `[how many, index of the layer, index of the phase]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby

from converter.ir import Graph, Origin
from converter.program.file import ProgramFile
from converter.support.errors import UsageError

#: Name of the metadata entry.
ENTRY = "pocketune.origins"
#: The phases of a step, in the order of time.
PHASES = ("forward", "backward", "update")


def to_entry(exported: Mapping[str, Graph]) -> bytes:
    """Return the metadata entry for the graphs of a file."""
    indices: dict[str, int] = {}
    signatures = {
        name: [
            [len(list(run)), indices.setdefault(layer, len(indices)), PHASES.index(phase)]
            for (layer, phase), run in groupby((node.origin.layer, node.origin.phase) for node in graph.nodes)
        ]
        for name, graph in exported.items()
    }
    return json.dumps({"layers": list(indices), "signatures": signatures}, separators=(",", ":")).encode()


def read_origins(program: ProgramFile) -> dict[str, list[Origin]]:
    """Return the origin of each operator of each signature, in the file's order.

    Raises:
        UsageError: the file does not say.
    """
    try:
        said = json.loads(bytes(program.metadata[ENTRY]))
        layers = [str(layer) for layer in said["layers"]]
        return {
            name: [
                origin for count, layer, phase in runs for origin in [Origin(layers[layer], "", PHASES[phase])] * count
            ]
            for name, runs in said["signatures"].items()
        }
    except (KeyError, ValueError, TypeError, AttributeError, IndexError):
        raise UsageError(
            "it does not say which layers its operators belong to: build it again", page="program-files"
        ) from None
