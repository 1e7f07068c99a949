"""Fingerprint of a model: a short hash of its computation, the same for every way to build it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from converter.driver.quantization.report import QuantizationReport
from converter.frontends.source import Source
from converter.ir import Graph, LazyArray, Parameter, Value, View
from converter.passes.read_weights import pieces, read
from converter.program.manifest import FrozenWeight, Identity, called_by_step
from converter.program.manifest.identity import FINGERPRINT
from converter.training.dropout import without_dropout
from converter.training.optim import OptimizerProgram
from converter.training.optim.program import UPDATE, unscaled
from converter.training.schemes import Adapter

#: The batch for which the forward computation is looked at, whatever the program's is: shapes are a part of it.
ROWS = 2
_DIGITS = 16


def identity_of(
    imported: Callable[[int], Source],
    source: Source,
    optimizer: str,
    rule: OptimizerProgram,
    adapters: Sequence[Adapter],
    quantization: QuantizationReport | None,
    trained: Iterable[Parameter],
    signatures: Mapping[str, Graph],
) -> Identity:
    """Return what a state of a program belongs to.

    Args:
        imported: the model for a number of rows.
        source: the same for those of the build.
        optimizer: its name.
        rule: its update.
        adapters: of the frozen weights.
        quantization: what became int8 or int4.
        trained: the parameters that a step changes, as the program stores them.
        signatures: the lowered graphs.
    """
    views = {parameter.name: parameter.view for parameter in trained}
    step = [signatures[name] for name in called_by_step(signatures)]
    graph = without_dropout(_for_rows(imported, source))
    weights = _in_order_of_use(graph)
    labels = {p.name: f"trained {p.name}" if p.name in views else f"frozen {i}" for i, p in enumerate(weights)}
    added = [f"{labels[a.weight]} {a.a.kind} {a.inputs} {a.scale!r}{' dora' * bool(a.magnitude)}" for a in adapters]
    still = [*weights, *(adapter.a for adapter in adapters if adapter.a.kind == "weight")]
    frozen = [(p, _frozen_numbers(p, views.get(p.name))) for p in still]
    return Identity(
        optimizer,
        _of_update(rule),
        _digest(_of_model(graph, labels), *sorted(added)),
        tuple(FrozenWeight(p.name, p.model_value.shape, _digest(part)) for p, part in frozen if part is not None),
        "" if quantization is None else _digest(*_int8_forms(quantization, step)),
        FINGERPRINT,
    )


def _int8_forms(quantization: QuantizationReport, step: Sequence[Graph]) -> list[str]:
    """Return a line for each frozen layer that became int8 or int4, and for the range of what it gives in the step."""
    rounded = [layer for layer in quantization.layers if layer.form != "float32"]
    # How large blocks are the reason says.
    forms = {f"{one.layer} {one.form}{f' {one.why}' if 'blockwise' in one.form else ''}" for one in rounded}
    weighted = [n for g in step for n in g.nodes if any(v in g.constants and v.type.quantization for v in n.inputs)]
    given = {(n.origin.layer, n.outputs[0].type.quantization) for n in weighted}
    # In two digits: the last bits of a range are those of the processor that ran the samples.
    return sorted(forms | {f"{layer} {q.scale:.1e}" for layer, q in given if q is not None and not q.per_channel})


def _for_rows(imported: Callable[[int], Source], source: Source) -> Graph:
    """Return the forward graph for `ROWS` rows; for those of the build where the model takes no other number."""
    if source.graph.inputs and source.graph.inputs[0].shape[0] == ROWS:
        return source.graph
    try:
        return imported(ROWS).graph
    except Exception:  # whatever the user's code raises: it has been imported for the build's own rows
        return source.graph


def _in_order_of_use(graph: Graph) -> list[Parameter]:
    """Return the parameters that the outputs depend on, as one meets them on the way back from the outputs."""
    made, seen, found = graph.producers(), set[Value](), list[Parameter]()
    pending = list(reversed(list(graph.outputs.values())))
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in graph.parameters:
            found.append(graph.parameters[value])
        elif value in made:
            pending += reversed(made[value].inputs)
    return found


def _frozen_numbers(parameter: Parameter, view: View | None) -> np.ndarray | LazyArray | None:
    """Return the numbers of a parameter that do not train, in the model's order; None where all do."""
    if view is None:
        return parameter.model_value if parameter.source is None else parameter.source
    if not view.is_cut:
        return None
    array = read(parameter).model_value
    still = np.ones(array.size, bool)
    still[view.places(array.shape)] = False
    return array.reshape(-1)[still]


def _of_model(graph: Graph, labels: Mapping[str, str]) -> str:
    """Return what a forward graph gives, its parameters by these labels; outputs and inputs count by their places."""
    parameters = {v: f"{labels[p.name]} {v.type}" for v, p in graph.parameters.items() if p.name in labels}
    results = _results(graph, parameters | {v: f"input {i} {v.type}" for i, v in enumerate(graph.inputs)})
    return _digest(*results.values())


def _of_update(rule: OptimizerProgram) -> str:
    """Return what an update is, whatever the numbers in it are: a user may change rates and go on."""
    graph = (rule.traced or rule.graph).copy()
    graph.outputs |= {UPDATE + name: unscaled(graph, name) for name in rule.parameters}
    numbers = {v: f"number {v.type}" for v in graph.constants}
    results = _results(graph, numbers | {v: f"{v.name} {v.type}" for v in graph.inputs})
    return _digest(*(f"{name} {results[name]}" for name in sorted(results)))


def _results(graph: Graph, given: Mapping[Value, str]) -> dict[str, str]:
    """Return the outputs by what they are computed from: no order of nodes counts, and nothing that no output needs.

    Args:
        graph: any.
        given: what stands for values that no node makes; constants that are not among them count with their numbers.
    """
    known = {v: _digest(str(v.type), array) for v, array in graph.constants.items() if v not in given} | dict(given)
    for node in graph.nodes:
        if any(v not in known for v in node.inputs):
            continue  # of a parameter that no output needs
        bodies = (_of_model(body, {}) for body in node.op.bodies())
        digest = _digest(str(node.op), *bodies, *(known[v] for v in node.inputs))
        known |= {v: f"{digest} {i}" for i, v in enumerate(node.outputs)}
    return {name: known[value] for name, value in graph.outputs.items()}


def _digest(*parts: str | np.ndarray | LazyArray) -> str:
    """Return the first digits of a sha256."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, LazyArray):
            for _, numbers in pieces(part, "a frozen weight"):
                sha.update(np.ascontiguousarray(numbers).data)
        else:
            sha.update(f"{part}\n".encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return sha.hexdigest()[:_DIGITS]
