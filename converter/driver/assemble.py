"""The finished product: a training program, its manifest and its costs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from converter.driver import entries
from converter.driver.account import account_of
from converter.driver.compilation import Compilation
from converter.driver.defaults import Rule
from converter.driver.plain.any_rows import for_any_rows
from converter.driver.plain.layout import assembly_of
from converter.driver.requests import Request
from converter.ir import Graph, Parameter, nested
from converter.ir.graph import to_text
from converter.ir.view import View
from converter.program import origins, seal
from converter.program.flatbuffer.metadata import ACCOUNT
from converter.program.manifest import (
    FROZEN,
    GRADIENT,
    INFERENCE,
    INITIAL,
    MANIFEST,
    Identity,
    Manifest,
    manifest_of_json,
)
from converter.program.merge import MERGE
from converter.support.files import write_atomically
from converter.support.notes import Note
from converter.support.words import count, size
from converter.tflite.emit.emit import Subgraph, draft
from converter.tflite.lowering import state as export
from converter.tflite.lowering.forms import FormChoice
from converter.tflite.schedule import numbering
from converter.training.schemes import Row

if TYPE_CHECKING:
    from converter.driver.int8 import QuantizationReport
    from converter.runtime.export import State

#: What signatures give beside `loss`, `correct` and `done`, where that is not the model's output.
GIVES = {"evaluate": "figure", "fisher": "fisher"}


@dataclass(frozen=True)
class Choice:
    """One way to build that was tried.

    Attributes:
        micro_batch: rows computed at once.
        recompute: whether the backward pass computes the forward pass again.
        resident_bytes: predicted memory of a session.
        flops: floating point operations of one training step.
    """

    micro_batch: int
    recompute: bool
    resident_bytes: int
    flops: int

    @staticmethod
    def of(plan: Plan) -> Choice:
        """The figures of a plan."""
        costs = plan.costs
        flops = costs["flops_forward"] + costs["flops_backward"] + costs["flops_update"]
        return Choice(plan.micro_batch, plan.recompute, costs["resident_bytes"], flops)


@dataclass(frozen=True)
class Plan:
    """A program whose costs are known, and which is not made yet.

    Attributes:
        scheme: the name of the update scheme.
        micro_batch: rows computed at once.
        costs: see `converter.tflite.costs.costs`.
        assemble: makes the program; what it is given by name (`signatures`, `costs`) stands for what was planned.
        recompute: whether the backward pass computes the forward pass again.
        tried: what was weighed for a memory budget.
    """

    scheme: str
    micro_batch: int
    costs: Mapping[str, int]
    assemble: Callable[..., Program] = field(repr=False)
    recompute: bool = False
    tried: Sequence[Choice] = ()


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        data: the `.tflite` file.
        manifest: what the file says about itself.
        costs: trained parameters, FLOPs, bytes; see `converter.tflite.costs.costs`.
        table: what trains, parameter by parameter, and why.
        signatures: the lowered, scheduled graph of each signature, before the state was exported; what they share with
            the file is a view of `data`.
        report: which form each op of the training step got, where there was a choice, and what the others cost.
        notes: what of the model is fixed, left out or read in another way than it was written, and why.
        quantization: what became int8 and what that costs, for `frozen="int8"`.
        tried: what was weighed for a memory budget.
    """

    data: bytes = field(repr=False)
    manifest: Manifest
    costs: Mapping[str, int]
    table: Sequence[Row]
    signatures: Mapping[str, Graph] = field(repr=False)
    report: Sequence[FormChoice] = field(repr=False)
    notes: Sequence[Note] = ()
    quantization: QuantizationReport | None = None
    tried: Sequence[Choice] = ()

    def __repr__(self) -> str:
        """Return a short table: what the program is, what trains, and what a step takes."""
        manifest = self.manifest
        lines = {
            "program": f"{manifest.name}, {size(len(self.data))}, target {manifest.target}",
            "signatures": ", ".join(manifest.signatures),
            "trains": f"{manifest.update.scheme}, {count(self.costs['trained_parameters'])} numbers",
            "optimizer": manifest.optimizer,
            "loss": str(manifest.loss),
            "batch": str(manifest.batch),
            "memory": f"{size(self.costs['resident_bytes'])} resident, {size(self.costs['state_bytes'])} of it state",
        }
        return "\n".join(f"{label:<11} {text}" for label, text in lines.items())

    @staticmethod
    def assemble(
        request: Request,
        signatures: Mapping[str, Graph],
        costs: Mapping[str, int],
        done: Compilation,
        notes: Sequence[Note],
        rule: Rule,
        identify: Callable[[Iterable[Parameter], Mapping[str, Graph]], Identity],
    ) -> Program:
        """Export the state, write the manifest and emit the file.

        Args:
            request: what was asked for.
            signatures: lowered, scheduled graphs of the step (`train`, or two of which one is `apply`), `evaluate`
                and `infer`.
            costs: of the training step.
            done: what the passes found.
            notes: what the person is to know.
            rule: the optimizer.
            identify: what a state belongs to, from the parameters that a step changes and the signatures.
        """
        state, target, source, adapters = request.state, request.target, done.source, done.adapters
        graph_hash, parameters = _hash(signatures), _updating(signatures).parameters
        changed = [p for p in parameters.values() if p.kind in ("weight", "statistic")]
        tensors = _tensor_names(signatures)
        built = _built(_renamed(_updating(signatures), tensors))
        exported = _export({name: _renamed(graph, tensors) for name, graph in signatures.items()}, built, state)
        cut = {row.parameter for row in done.rows if 0 < row.fraction < 1}
        manifest = manifest_of_json(
            {
                "format": "pocketune/1",
                "name": source.name,
                "graph_hash": graph_hash,
                "target": target.name,
                "state": state,
                "micro_batch": request.micro_batch,
                "loss": done.goal.stated,
                "optimizer": rule.name,
                "update": {"scheme": request.scheme.name, "table": [entries.table_row(row) for row in done.rows]},
                "signatures": {
                    name: entries.signature_of(
                        graph, set(tensors.values()), GIVES.get(name, "output"), done.mixing.get(name)
                    )
                    for name, graph in exported.items()
                    if name != export.INITIAL
                },
                "state_tensors": [
                    entries.state_tensor(tensors[p.name], v, p)
                    for v, p in parameters.items()
                    if p.kind != "accumulator"
                ],
                "parameters": [
                    {
                        "name": p.name,
                        "shape": list(p.model_value.shape),
                        "dtype": p.model_value.dtype.name,
                        "pieces": [{"tensor": tensors[p.name], "view": p.view.to_json()}],
                        "frozen": entries.frozen_part(p) if p.name in cut else None,
                    }
                    for p in changed
                ],
                "costs": dict(costs),
                "learning_rate": rule.learning_rate,
                "running_rate": entries.running_rate(rule.running_rate, tensors),
                "target_labels": {
                    name: asdict(labels)
                    for term in done.goal.terms(source.graph)
                    for name, labels in term.labels(source.graph).items()
                },
                "choices": [entries.chosen_channels(a, tensors) for a in adapters if a.a.kind == "choice"],
                "identity": identify(changed, signatures).to_json(),
                **request.options.in_manifest(),
            }
        )
        metadata = {MANIFEST: manifest.to_bytes(), seal.ENTRY: seal.BLANK, origins.ENTRY: origins.to_entry(exported)}
        stored: dict[str, bytes | np.ndarray] = {
            INITIAL + p.name: entries.stored_once(p.value) for p in built.parameters.values() if p.kind != "accumulator"
        }
        for parameter in parameters.values():
            if parameter.name in cut:
                rest = parameter.view.rest(parameter.model_value)
                stored[FROZEN + parameter.name] = entries.stored_once(rest.apply(parameter.model_value))
        account = account_of(source.graph, signatures, exported, target, state, done.report, notes)
        stored[ACCOUNT] = account.to_bytes()
        subgraphs = [Subgraph(name, graph, signature=name != export.INITIAL) for name, graph in exported.items()]
        plain = signatures.get("infer")
        if done.plain is not None:
            plain = done.plain.graph
            metadata[MERGE], frozen = entries.merging(done.plain, tensors)
            stored |= frozen
        derived = {}
        if plain is not None:
            # Where rows influence each other they are those of the batch.
            plain = (None if done.mixing.get("infer") else for_any_rows(plain)) or plain
            said = f"{source.name}, trained with Pocketune"
            derived[INFERENCE] = partial(assembly_of, "infer", _renamed(plain, tensors), said)
        description = f"Pocketune training program of {source.name}"
        # A delegate for stateless programs (a GPU, an NPU) runs one partition, the largest: there they may grow.
        numbered = partial(numbering, lanes=target.lanes, in_order=state == "variables")
        drawn = draft(subgraphs, metadata, description, stored, derived, state == "variables", numbered)
        # Constants that were made are large: only the file is to hold them from now on.
        del built, exported, subgraphs, stored, derived
        kept = [*signatures.values(), *([] if plain is None else [plain])]
        data = drawn.file({seal.ENTRY: seal.seal}, [inner for graph in kept for inner in nested(graph)])
        priced = {**costs, "file_bytes": len(data)}
        made = list(done.rows), dict(signatures), list(done.report), tuple(notes), done.quantization
        return Program(data, manifest, priced, *made)

    def write(self, path: str | os.PathLike) -> Path:
        """Writes the file whole or not at all. Raises UsageError when it cannot be written."""
        write_atomically(path, self.data)
        return Path(path)

    def export_inference(
        self,
        path: str | os.PathLike,
        state: State = None,
        quantize: str | None = None,
        exact: bool = True,
        batch: int | None = None,
    ) -> Path:
        """Writes the model with the weights of a state as a plain `.tflite`; see `converter.runtime.export`."""
        from converter.program.file import read_program
        from converter.runtime.export import export_inference

        export_inference(read_program(self.data), path, state, quantize, exact, batch)
        return Path(path)

    def check(self) -> None:
        """Runs one step in the stock interpreter. Raises NumericError when a result is not finite or nothing moves."""
        from converter.driver.check import check_program

        check_program(self.data)


def _export(signatures: Mapping[str, Graph], built: Graph, state: str) -> dict[str, Graph]:
    """All subgraphs of the file by name; the step comes first. `built` has what the state begins with."""
    if state in export.AS_ARGUMENTS:
        passed = {name: export.AS_ARGUMENTS[state](graph) for name, graph in signatures.items()}
        return {name: export.with_own_results(graph) for name, graph in passed.items()}
    exported = {
        name: export.with_own_results(export.with_variables(graph, clears=name == "apply"))
        for name, graph in signatures.items()
    }
    if "apply" in exported:
        exported["apply"] = export.with_done(exported["apply"], exported["apply"].inputs[0])
    return exported | {
        "save": export.save(built),
        "restore": export.restore(built),
        "initialize": export.initialize(built),
        export.INITIAL: export.initial_state(built),
    }


def _updating(signatures: Mapping[str, Graph]) -> Graph:
    """The graph that updates, and so holds every parameter, slot and accumulator."""
    return signatures.get("apply") or signatures["train"]


def _tensor_names(signatures: Mapping[str, Graph]) -> dict[str, str]:
    """What each state tensor is called in the file: its parameter's name, unless an input or output has it already."""
    taken = {"tick", "done"}
    for graph in signatures.values():
        taken |= {v.name for v in graph.inputs} | graph.outputs.keys()
    parameters = _updating(signatures).parameters.values()
    taken |= {p.name for p in parameters if p.kind == "accumulator"}
    names = (p.name for p in parameters if p.kind != "accumulator")
    return {name: f"parameter/{name}" if name in taken else name for name in names}


def _renamed(graph: Graph, tensors: Mapping[str, str]) -> Graph:
    """The graph with parameters named after the tensors of the file; an accumulator after the one it works for."""

    def renamed(parameter: Parameter) -> Parameter:
        if parameter.kind == "accumulator":
            return replace(parameter, name=GRADIENT + tensors[parameter.name.removeprefix(GRADIENT)])
        if parameter.kind == "merged":  # no tensor of the file
            return parameter
        return replace(parameter, name=tensors[parameter.name])

    after = graph.copy()
    after.parameters = {v: renamed(p) for v, p in graph.parameters.items()}
    return after


def _built(graph: Graph) -> Graph:
    """The graph with parameters whose values are in the order in which they are stored, and lie where they were."""
    after = graph.copy()
    after.parameters = {
        v: replace(p, model_value=p.view.of(p.model_value).reshape(v.shape), view=View())
        for v, p in graph.parameters.items()
    }
    return after


def _hash(signatures: Mapping[str, Graph]) -> str:
    """The operators, the constants and the built weights of every signature: of this very program."""
    digest = hashlib.sha256()
    for name, graph in signatures.items():
        digest.update(f"{name}\n{to_text(graph)}\n".encode())
        for array in (array for inner in nested(graph) for array in inner.constants.values()):
            digest.update(np.ascontiguousarray(array).data)
        for parameter in (p for p in graph.parameters.values() if p.kind != "accumulator"):
            digest.update(np.ascontiguousarray(parameter.model_value).data)
    return digest.hexdigest()
