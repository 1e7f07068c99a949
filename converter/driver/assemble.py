"""Program assembly: from scheduled signatures to a file with the state, the manifest and other metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from converter.backend.emit.emit import Draft, Subgraph, draft
from converter.backend.lowering import state as export
from converter.backend.schedule import keeps_order, numbering
from converter.backend.schedule.micro_graph import micro_numbering
from converter.backend.targets import Target
from converter.driver import entries
from converter.driver.build_report import account_of
from converter.driver.compilation import Compilation
from converter.driver.defaults import OptimizerRule
from converter.driver.manifest import manifest_entry, trained_in_part, updating
from converter.driver.plain.any_rows import FixedRows, for_any_rows, held_to_its_rows
from converter.driver.plain.layout import assembly_of
from converter.driver.program import Program
from converter.driver.requests import Request
from converter.ir import INT4, Graph, Parameter, Value, nested
from converter.ir.view import View
from converter.program import checksum, gguf_names, origins
from converter.program.adapters import ADAPTERS
from converter.program.flatbuffer.buffers import Buffers
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
from converter.support.files import Mapped
from converter.support.notes import Note


def begin(
    request: Request,
    signatures: Mapping[str, Graph],
    costs: Mapping[str, int],
    done: Compilation,
    notes: Sequence[Note],
    rule: OptimizerRule,
    identify: Callable[[Iterable[Parameter], Mapping[str, Graph]], Identity],
) -> Begun:
    """Export the state and write the manifest: the file is still to be put together.

    Args:
        request: the request of the build.
        signatures: lowered, scheduled graphs of the step (`train`, or two of which one is `apply`), `evaluate` and
            `infer`.
        costs: of the training step.
        done: the results of the passes.
        notes: the build notes for the user.
        rule: the optimizer.
        identify: returns the identity of a state, from the parameters that a step changes and the signatures.
    """
    tensors = _tensor_names(signatures)
    renamed = {name: _renamed(graph, tensors) for name, graph in signatures.items()}
    plain = _exported(signatures, done)
    notes = [*notes, *plain.notes()]
    # Constants that were made are large: behind this call only the file is to hold them.
    parts = _parts(request, signatures, costs, done, notes, rule, identify, tensors, renamed, plain)
    kept = [*signatures.values(), *([] if plain.graph is None else [plain.graph])]
    made = list(done.rows), dict(signatures), list(done.report), tuple(notes), done.quantization
    return Begun(parts, [inner for graph in kept for inner in nested(graph)], dict(costs), made)


def put_together(drawn: Draft, graphs: Sequence[Graph]) -> bytes | Mapped:
    """Return the file; constants of graphs that it holds are parts of it from then on: they are held once.

    But for int4, two of which share a byte there.
    """
    moved = [
        (graph, value, number)
        for graph in graphs
        for value, array in graph.constants.items()
        if value.dtype != INT4 and (number := drawn.number(array)) is not None
    ]
    for graph, value, _ in moved:
        graph.constants[value] = np.broadcast_to(value.dtype.type(0), value.shape)
    data = drawn.file({checksum.ENTRY: checksum.add_checksum})
    for graph, value, number in moved:
        graph.constants[value] = drawn.view(data, number, value.type)
    return data


class Parts(NamedTuple):
    """What a file is made of.

    Attributes:
        manifest: of the program.
        subgraphs: as of `draft`, and the others up to `shares` likewise.
        is_micro: whether it is for a microcontroller.
    """

    manifest: Manifest
    subgraphs: Sequence[Subgraph]
    metadata: Mapping[str, bytes]
    description: str
    stored: Mapping[str, bytes | np.ndarray]
    derived: Mapping[str, Callable[[Buffers], bytes]]
    in_order: bool
    numbered: Callable[[Graph], Iterable[Value]]
    shares: bool
    is_micro: bool

    def graph(self, name: str) -> Graph:
        """Return the graph of a subgraph."""
        return next(one.graph for one in self.subgraphs if one.name == name)

    def drawn(self) -> Draft:
        """Return the file but for the order of its bytes."""
        return draft(*self[1:9])


class Begun(NamedTuple):
    """A program whose file is still to be put together.

    Attributes:
        parts: of the file.
        graphs: that have the constants which it will hold.
        costs: of the training step.
        made: what a `Program` has besides.
    """

    parts: Parts
    graphs: Sequence[Graph]
    costs: Mapping[str, int]
    made: tuple[Any, ...]

    def program(self) -> Program:
        """Return the program, in a file of its own."""
        return self.within(put_together(self.parts.drawn(), self.graphs))

    def within(self, data: bytes | Mapped, head: str | None = None) -> Program:
        """Return the program in a file that was put together; `head` is which of several it is there."""
        costs = {**self.costs, "file_bytes": len(data)}
        return replace(Program(data, self.parts.manifest, costs, *self.made), head=head)


class _Exported(NamedTuple):
    """The model that is exported, lowered.

    Attributes:
        graph: for any number of rows where it can be; None where nothing is.
        fixed: why it is for its own number of rows alone, in words; None where it is not.
    """

    graph: Graph | None
    fixed: str | None = None

    def notes(self) -> list[Note]:
        """Return what to say of its rows."""
        if self.graph is None or self.fixed is None:
            return []
        rows, fixed = self.graph.inputs[0].shape[0], self.fixed
        said = f"{fixed}: inputs that are resized to others are refused. Build with batch= as many as the app gives"
        return [Note("exported model", f"takes {rows} row{'s' * (rows > 1)}", said)]


def _exported(signatures: Mapping[str, Graph], done: Compilation) -> _Exported:
    """Return the model that is exported."""
    plain = signatures.get("infer", done.whole_infer) if done.plain is None else done.plain.graph
    if plain is None or done.grafted is not None:  # the file itself is
        return _Exported(plain)
    if mixing := done.mixing.get("infer"):
        return _Exported(held_to_its_rows(plain), f"rows influence each other ({mixing})")
    try:
        return _Exported(for_any_rows(plain if done.graphs.exported is None else done.graphs.exported))
    except FixedRows as problem:
        return _Exported(held_to_its_rows(plain), done.of_few or str(problem))


def _parts(
    request: Request,
    signatures: Mapping[str, Graph],
    costs: Mapping[str, int],
    done: Compilation,
    notes: Sequence[Note],
    rule: OptimizerRule,
    identify: Callable[[Iterable[Parameter], Mapping[str, Graph]], Identity],
    tensors: Mapping[str, str],
    renamed: Mapping[str, Graph],
    plain: _Exported,
) -> Parts:
    """Return what a file is made of."""
    built = _built(updating(renamed))
    exported = _export(renamed, built, request.state)
    changed = [p for p in updating(signatures).parameters.values() if p.kind in entries.STORED]
    fixed = plain.fixed if done.grafted is None else done.grafted.fixed
    entry = manifest_entry(request, signatures, costs, done, rule, tensors, exported, fixed)
    manifest = manifest_of_json({**entry, "identity": identify(changed, signatures).to_json()})
    metadata = {
        MANIFEST: manifest.to_bytes(),
        checksum.ENTRY: checksum.BLANK,
        origins.ENTRY: origins.to_entry(exported),
    }
    account = account_of(done.source.graph, signatures, exported, request.target, request.state, done.report, notes)
    stored = {**_stored(signatures, done, built), ACCOUNT: account.to_bytes()}
    if any(one.a.kind != "choice" for one in done.adapters):
        shapes = {p.name: p.model_value.shape for p in done.source.graph.parameters.values()}
        metadata[ADAPTERS], frozen = entries.low_rank(done.adapters, shapes, tensors)
        stored |= frozen
        if (language := done.source.language) is not None and language.gguf is not None:
            metadata[gguf_names.ENTRY] = language.gguf.entry()
    if done.plain is not None and not done.integers:
        metadata[MERGE], frozen = entries.merging(done.plain, tensors)
        stored |= frozen
    derived = {}
    if done.grafted is not None:
        derived[INFERENCE] = partial(done.grafted.file.assembly, done.grafted.suffix)
    elif plain.graph is not None:
        said = f"{done.source.name}, trained with Pocketune"
        derived[INFERENCE] = partial(
            assembly_of, "infer", _renamed(done.source.interface.of(plain.graph), tensors), said
        )
    subgraphs = [Subgraph(name, graph, signature=name != export.INITIAL) for name, graph in exported.items()]
    in_order = keeps_order(signatures.values(), request.state)
    numbered = _numbering(request.target, exported.values(), in_order)
    description = f"Pocketune training program of {done.source.name}"
    newest, micro = request.target.is_newest, request.target.is_micro
    return Parts(manifest, subgraphs, metadata, description, stored, derived, in_order, numbered, newest, micro)


def _numbering(target: Target, exported: Collection[Graph], in_order: bool) -> Callable[[Graph], list[Value]]:
    """Return in which order what a subgraph's nodes make gets its numbers, which the runtime's planner looks at."""
    if not target.is_micro:
        return partial(numbering, lanes=target.lanes, in_order=in_order)
    return lambda graph: micro_numbering(graph, target.records["board"]) if graph in exported else []


def _stored(signatures: Mapping[str, Graph], done: Compilation, built: Graph) -> dict[str, bytes | np.ndarray]:
    """Return what the file keeps of the state: as it begins, and the frozen parts of what trains in part."""
    stored: dict[str, bytes | np.ndarray] = {
        INITIAL + p.name: entries.stored_once(p.value) for p in built.parameters.values() if p.kind != "accumulator"
    }
    for parameter in updating(signatures).parameters.values():
        if parameter.name in trained_in_part(done):
            stored[FROZEN + parameter.name] = entries.stored_once(entries.frozen_rest(parameter))
    return stored


def _export(signatures: Mapping[str, Graph], built: Graph, state: str) -> dict[str, Graph]:
    """Return all subgraphs of the file by name; the step comes first. `built` has what the state begins with."""
    if state in export.AS_ARGUMENTS:
        passed = {name: export.AS_ARGUMENTS[state](graph) for name, graph in signatures.items()}
        return {name: export.with_own_results(graph) for name, graph in passed.items()}
    exported = {
        name: export.with_own_results(export.with_variables(graph, clears=name == "apply"))
        for name, graph in signatures.items()
    }
    if "apply" in exported:
        exported["apply"] = export.with_done(exported["apply"], exported["apply"].inputs[0])
    initialize, initial = export.initial_states(built)
    moves = {"save": export.save(built), "restore": export.restore(built)}
    return exported | moves | {"initialize": initialize, export.INITIAL: initial}


def _tensor_names(signatures: Mapping[str, Graph]) -> dict[str, str]:
    """Return what each state tensor is called: its parameter's name, unless an input or output has it already."""
    taken = {"tick", "done"}
    for graph in signatures.values():
        taken |= {v.name for v in graph.inputs} | graph.outputs.keys()
    parameters = updating(signatures).parameters.values()
    taken |= {p.name for p in parameters if p.kind == "accumulator"}
    names = (p.name for p in parameters if p.kind != "accumulator")
    return {name: f"parameter/{name}" if name in taken else name for name in names}


def _renamed(graph: Graph, tensors: Mapping[str, str]) -> Graph:
    """Return the graph with parameters named after the tensors of the file.

    An accumulator after the one it works for.
    """

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
    """Return the graph with parameters whose values are in the order of storage, and lie where they were."""
    after = graph.copy()
    after.parameters = {
        v: replace(
            p,
            model_value=(p.view.of(p.model_value) if p.integers is None else p.value).reshape(v.shape),
            view=View(),
            integers=None,
        )
        for v, p in graph.parameters.items()
    }
    return after
