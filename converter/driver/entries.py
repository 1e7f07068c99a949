"""Manifest and metadata entries, made of graphs, parameters and adapters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.ir import Graph, Parameter, Value
from converter.ir.described import is_uniform
from converter.program.adapters import LowRank
from converter.program.manifest import FROZEN, GRADIENT, MASK, ROW_LOSSES, TARGET, ClassHead, LabelledOutput
from converter.program.merge import Merge, MergedWeight
from converter.training.int8_state import SCALES
from converter.training.schemes import Adapter, Plain, SchemeRow
from converter.training.watch import FINITE

if TYPE_CHECKING:
    from converter.training.optim.running_rate import ScheduledRate

#: Kinds of the model's own parameters that are in the state.
STORED = ("weight", "statistic", "base")
#: Inputs of the signatures that are not the model's own.
ROLES = {TARGET: "target", "weight": "weight", "learning_rate": "learning_rate", "tick": "tick"}


def merging(plain: Plain, tensors: Mapping[str, str]) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return what the metadata says of the weights to be merged, and the tensors that merging them takes."""
    weights, frozen = [], dict[str, np.ndarray]()
    for value, parameter in plain.graph.parameters.items():
        if parameter.kind != "merged":
            continue
        name, adapter = parameter.name, plain.adapters[parameter.name]
        if not adapter.redrawn:
            frozen[FROZEN + name] = stored_once(parameter.value)
        chosen = adapter.a.kind == "choice"
        if adapter.a.name not in tensors:
            frozen[FROZEN + adapter.a.name] = stored_once(adapter.a.model_value)
        weight = MergedWeight(
            name=name,
            shape=parameter.model_value.shape,
            stored=value.shape,
            view=parameter.view.steps,
            a=None if chosen else adapter.a.name,
            b=adapter.b.name,
            a_shape=None if chosen else adapter.a.model_value.shape,
            product=adapter.view.steps,
            scale=adapter.scale,
            magnitude=None if adapter.magnitude is None else adapter.magnitude.name,
        )
        weights.append(weight)
    return json.dumps(asdict(Merge(tuple(weights))), separators=(",", ":")).encode(), frozen


def frozen_rest(parameter: Parameter) -> np.ndarray:
    """Return what does not train of a weight that trains in part, as it is stored."""
    return parameter.view.rest(parameter.model_value).apply(parameter.model_value)


def low_rank(
    adapters: Iterable[Adapter], shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, str]
) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return what the metadata says of low-rank adapters, and those of their factors that are no state.

    Args:
        adapters: of any kind.
        shapes: of the weights, by name.
        tensors: names of the tensors of the state, by those of their parameters.
    """
    found = [one for one in adapters if one.a.kind != "choice"]
    frozen = {FROZEN + one.a.name: stored_once(one.a.model_value) for one in found if one.a.name not in tensors}
    weights = [
        LowRank(
            weight=one.weight,
            shape=shapes[one.weight],
            a=one.a.name,
            b=one.b.name,
            a_shape=one.a.model_value.shape,
            b_shape=one.b.model_value.shape,
            product=one.view.steps,
            scale=one.scale,
            trains_a=one.a.name in tensors,
            magnitude=None if one.magnitude is None else one.magnitude.name,
            dropout=one.dropout,
        )
        for one in found
    ]
    return json.dumps({"weights": [asdict(one) for one in weights]}, separators=(",", ":")).encode(), frozen


def running_rate(rate: ScheduledRate | None, tensors: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a rate that runs in the program, with its counter as it is stored."""
    if rate is None:
        return None
    counter = None if rate.counter is None else tensors[rate.counter]
    return {"description": rate.description, "zero_from": rate.zero_from, "counter": counter}


def state_tensor(tensor: str, value: Value, parameter: Parameter) -> dict[str, Any]:
    """Return what outlives a step: its tensor in the file, and what it is in the model's own terms."""
    model = {"name": parameter.name, "shape": list(parameter.model_value.shape), "view": parameter.view.to_json()}
    kind = {"shape": list(value.shape), "dtype": value.dtype.name, "slot": parameter.kind == "slot"}
    return {"tensor": tensor, **kind, "model": model}


def piece(parameter: Parameter, tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return where a trained weight lies in the state, and what its integers are multiplied by."""
    form, scales = parameter.integers, tensors.get(parameter.name + SCALES)
    where = {"tensor": tensors[parameter.name], "view": parameter.view.to_json()}
    return where | {"scales": None if form is None else {"tensor": scales, "axis": form.axis}}


def chosen_channels(adapter: Adapter, tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return a weight of which chosen channels train: the tensors of the choice and of the change."""
    return {
        "weight": adapter.weight,
        "channels": adapter.inputs,
        "indices": tensors[adapter.a.name],
        "change": adapter.b.name,
        "product": adapter.view.to_json() if adapter.redrawn else None,
    }


def class_head(head: ClassHead | None, tensors: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the last layer that the runtime may set: the tensor of the names as the file calls it."""
    if head is None:
        return None
    return asdict(head) | {"names": None if head.names is None else tensors[head.names]}


def labelled_output(labelled: LabelledOutput, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """Return an output whose classes the labels name, with those parameters of its last layer that the state holds."""
    held = {parameter.name for parameter in parameters}
    return asdict(labelled) | {"parameters": [name for name in labelled.parameters if name in held]}


def table_row(row: SchemeRow) -> dict[str, Any]:
    """Return a row of the update scheme."""
    return {"parameter": row.parameter, "fraction": row.fraction, "why": row.why}


def signature_of(graph: Graph, state: set[str], gives: str, mixing: str | None) -> dict[str, Any]:
    """Return a signature: its inputs and outputs with their roles, where `gives` is the role of what is the model's."""
    accumulators = {GRADIENT + name for name in state} - state

    def role(name: str, others: Mapping[str, str], default: str) -> str:
        return "state" if name in state else "gradient" if name in accumulators else others.get(name, default)

    def spec(name: str, value: Value, role: str) -> dict[str, Any]:
        return {"name": name, "shape": list(value.shape), "dtype": value.dtype.name, "role": role}

    roles = ROLES | {v.name: "target" for v in graph.inputs if v.name.startswith(f"{TARGET}/")}
    results = {name: name for name in ("loss", "correct", "done")}
    if any(v.name == "learning_rate" for v in graph.inputs):
        results[FINITE] = "finite"
    if any(v.name == "weight" for v in graph.inputs):
        results[ROW_LOSSES] = "row_losses"
    results |= {name: "mask" for name in graph.outputs if name.startswith(MASK)}
    return {
        "inputs": [spec(v.name, v, role(v.name, roles, "input")) for v in graph.inputs],
        "outputs": [spec(name, v, role(name, results, gives)) for name, v in graph.outputs.items()],
        "mixing": mixing,
    }


def frozen_part(parameter: Parameter) -> dict[str, Any]:
    """Return where the frozen rest of a weight is that trains in part."""
    rest = parameter.view.rest(parameter.model_value)
    shape = rest.apply(parameter.model_value).shape
    return {"entry": FROZEN + parameter.name, "shape": list(shape), "view": rest.to_json()}


def stored_once(array: np.ndarray) -> np.ndarray:
    """Return what is stored of a tensor: of equal elements one."""
    return array.flat[:1] if is_uniform(array) else array
