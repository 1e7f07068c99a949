"""The finished product: a training program, its manifest and its costs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from converter import seal
from converter.files import write_atomically
from converter.ir import Graph, Value
from converter.ir.printer import to_text
from converter.manifest import Manifest
from converter.models import Source
from converter.sparse import Row
from converter.tflite import export
from converter.tflite.emit import Subgraph, emit

#: Inputs of the signatures that are not the model's own.
ROLES = {"y": "target", "weight": "weight", "learning_rate": "learning_rate", "tick": "tick"}


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        data: the `.tflite` file.
        manifest: what the file says about itself.
        costs: trained parameters, FLOPs, bytes; see `converter.costs`.
        table: what trains, parameter by parameter, and why.
        signatures: the lowered, scheduled graph of each signature, before the state was exported.
    """

    data: bytes = field(repr=False)
    manifest: Manifest
    costs: Mapping[str, int]
    table: Sequence[Row]
    signatures: Mapping[str, Graph] = field(repr=False)

    @staticmethod
    def assemble(
        signatures: Mapping[str, Graph],
        state: str,
        source: Source,
        rows: Sequence[Row],
        costs: Mapping[str, int],
        **facts: Any,
    ) -> Program:
        """Exports the state, writes the manifest and emits the file.

        Args:
            signatures: lowered, scheduled graphs of `train`, `evaluate` and `infer`.
            state: `variables` or `stateless`.
            source: the imported model.
            rows: the resolved update scheme.
            costs: of the training step.
            **facts: what else goes into the manifest (scheme, loss, optimizer, target, batch).
        """
        step = signatures["train"]
        exported = _export(signatures, state)
        partial = {row.parameter for row in rows if 0 < row.fraction < 1}
        manifest = Manifest.from_json(
            {
                "format": "pocketune/1",
                "name": source.name,
                "graph_hash": _hash(signatures),
                "target": facts["target"],
                "state": state,
                "batch": facts["batch"],
                "loss": facts["loss"],
                "optimizer": facts["optimizer"],
                "update": {"scheme": facts["scheme"], "table": [asdict(row) for row in rows]},
                "signatures": {
                    name: _signature(graph, step) for name, graph in exported.items() if name != export.INITIAL
                },
                "state_tensors": [
                    {"tensor": p.name, "shape": list(v.shape), "dtype": v.dtype.name, "slot": p.is_slot}
                    for v, p in step.parameters.items()
                ],
                "parameters": [
                    {
                        "name": p.name,
                        "shape": list(p.model_value.shape),
                        "dtype": p.model_value.dtype.name,
                        "pieces": [{"tensor": p.name, "view": p.view.to_json()}],
                        "base": f"pocketune.base/{p.name}" if p.name in partial else None,
                    }
                    for p in step.parameters.values()
                    if not p.is_slot
                ],
                "costs": dict(costs),
                "labels": None,
                "preprocessing": None,
            }
        )
        metadata = {"pocketune.manifest": manifest.to_bytes(), seal.ENTRY: seal.BLANK}
        for value, parameter in step.parameters.items():
            metadata[f"pocketune.initial/{parameter.name}"] = _raw(parameter.value.reshape(value.shape))
            if parameter.name in partial:
                metadata[f"pocketune.base/{parameter.name}"] = _raw(parameter.model_value)
        subgraphs = [Subgraph(name, graph, signature=name != export.INITIAL) for name, graph in exported.items()]
        data = seal.seal(emit(subgraphs, metadata, f"Pocketune training program of {source.name}"))
        return Program(data, manifest, {**costs, "file_bytes": len(data)}, list(rows), dict(signatures))

    def write(self, path: str | os.PathLike) -> Path:
        """Writes the file whole or not at all. Raises UsageError when it cannot be written."""
        write_atomically(path, self.data)
        return Path(path)

    def check(self) -> None:
        """Runs one step in the stock interpreter. Raises NumericError when a result is not finite or nothing moves."""
        from converter.check import check_program

        check_program(self.data)


def _export(signatures: Mapping[str, Graph], state: str) -> dict[str, Graph]:
    """All subgraphs of the file by name; `train` comes first."""
    step = signatures["train"]
    if state == "stateless":
        return {name: export.with_state_as_arguments(graph) for name, graph in signatures.items()}
    return {name: export.with_variables(graph) for name, graph in signatures.items()} | {
        "save": export.save(step),
        "restore": export.restore(step),
        "initialize": export.initialize(step),
        export.INITIAL: export.initial_state(step),
    }


def _signature(graph: Graph, step: Graph) -> dict[str, Any]:
    state = {p.name for p in step.parameters.values()}

    def spec(name: str, value: Value, role: str) -> dict[str, Any]:
        return {"name": name, "shape": list(value.shape), "dtype": value.dtype.name, "role": role}

    def role_of_output(name: str) -> str:
        return "state" if name in state else name if name in ("loss", "correct", "done") else "output"

    return {
        "inputs": [spec(v.name, v, "state" if v.name in state else ROLES.get(v.name, "input")) for v in graph.inputs],
        "outputs": [spec(name, v, role_of_output(name)) for name, v in graph.outputs.items()],
    }


def _raw(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _hash(signatures: Mapping[str, Graph]) -> str:
    """What a saved state belongs to: the operators, the constants and the built weights of every signature."""
    digest = hashlib.sha256()
    for name, graph in signatures.items():
        digest.update(f"{name}\n{to_text(graph)}\n".encode())
        for array in graph.constants.values():
            digest.update(np.ascontiguousarray(array).tobytes())
        for parameter in graph.parameters.values():
            digest.update(np.ascontiguousarray(parameter.model_value).tobytes())
    return digest.hexdigest()
