"""The manifest entry of a program that is built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from converter.backend.lowering import state as export
from converter.driver import entries
from converter.driver.compilation import Compilation
from converter.driver.defaults import OptimizerRule
from converter.driver.requests import Request
from converter.ir import Graph, Parameter, nested
from converter.ir.graph import to_text
from converter.program.manifest import ON_FEATURES, at_length, updates

#: What signatures give beside `loss`, `correct`, `finite` and `done`, where that is not the model's output.
GIVES = {"evaluate": "figure", f"evaluate{ON_FEATURES}": "figure", "fisher": "fisher"}


def manifest_entry(
    request: Request,
    signatures: Mapping[str, Graph],
    costs: Mapping[str, int],
    done: Compilation,
    rule: OptimizerRule,
    tensors: Mapping[str, str],
    exported: Mapping[str, Graph],
    fixed: str | None,
) -> dict[str, Any]:
    """Return the manifest as JSON, but for the identity.

    Args:
        request: the request of the build.
        signatures: lowered, scheduled graphs.
        costs: of the training step.
        done: the results of the passes.
        rule: the optimizer.
        tensors: names of state tensors, by those of parameters and slots.
        exported: the subgraphs of the file by name.
        fixed: why what is exported is held to its rows; None where it is not.
    """
    parameters = updating(signatures).parameters
    infer = "infer" if "infer" in exported else f"infer{ON_FEATURES}"
    return {
        "format": "pocketune/1",
        "name": request.options.name or done.source.name,
        "graph_hash": _hash(signatures, request.options.labels if done.labelled else None),
        "target": request.target.name,
        "state": request.state,
        "micro_batch": request.micro_batch,
        "loss": done.goal.stated,
        "optimizer": rule.name,
        "update": {"scheme": request.scheme.name, "table": [entries.table_row(row) for row in done.rows]},
        "signatures": {
            name: entries.signature_of(graph, set(tensors.values()), GIVES.get(base, "output"), done.mixing.get(base))
            | ({"fixed": fixed} if name == infer else {})
            for name, graph in exported.items()
            if name != export.INITIAL
            for base, _ in [at_length(name)]
        },
        "state_tensors": [
            entries.state_tensor(tensors[p.name], v, p) for v, p in parameters.items() if p.kind != "accumulator"
        ],
        "parameters": _parameters(parameters.values(), trained_in_part(done), tensors),
        "costs": dict(costs),
        "learning_rate": rule.learning_rate,
        "running_rate": entries.running_rate(rule.running_rate, tensors),
        "target_labels": {
            name: {**asdict(labels), "only": list(labels.only)}
            for term in done.goal.terms(done.source.graph)
            for name, labels in term.labels(done.source.graph).items()
        },
        "poles": list(done.poles),
        "choices": [entries.chosen_channels(a, tensors) for a in done.adapters if a.a.kind == "choice"],
        "labelled": [entries.labelled_output(one, parameters.values()) for one in done.labelled],
        "head": entries.class_head(done.head, tensors),
        **request.options.in_manifest(),
    }


def _parameters(parameters: Iterable[Parameter], cut: set[str], tensors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what the manifest says of the model's own parameters that are in the state; `cut` train in part."""
    return [
        {
            "name": p.name,
            "shape": list(p.model_value.shape),
            "dtype": p.model_value.dtype.name,
            "pieces": [entries.piece(p, tensors)],
            "frozen": entries.frozen_part(p) if p.name in cut else None,
        }
        for p in parameters
        if p.kind in entries.STORED
    ]


def trained_in_part(done: Compilation) -> set[str]:
    """Return the names of the parameters that train in part."""
    return {row.parameter for row in done.rows if 0 < row.fraction < 1}


def updating(signatures: Mapping[str, Graph]) -> Graph:
    """Return the graph that updates, and so holds every parameter, slot and accumulator."""
    return signatures[updates(signatures)]


def _hash(signatures: Mapping[str, Graph], labels: Collection[str] | None) -> str:
    """Return the operators, the constants and the built weights of every signature, and the classes of its outputs."""
    digest = hashlib.sha256(b"" if labels is None else json.dumps(list(labels)).encode())
    for name, graph in signatures.items():
        digest.update(f"{name}\n{to_text(graph)}\n".encode())
        for array in (array for inner in nested(graph) for array in inner.constants.values()):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        for parameter in (p for p in graph.parameters.values() if p.kind != "accumulator"):
            digest.update(np.ascontiguousarray(parameter.model_value).data)
    return digest.hexdigest()
