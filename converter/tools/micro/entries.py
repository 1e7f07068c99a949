"""Signatures of a program as TensorFlow Lite Micro runs them: what each input is filled with, and what outputs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from converter.program.file import ProgramFile
from converter.program.flatbuffer.parts import with_bodies
from converter.program.flatbuffer.schema import generated
from converter.program.manifest import Manifest, TensorSpec
from converter.support.errors import UnsupportedError, UsageError
from converter.tools.micro.int8_inputs import Int8Scale, int8_input, take_int8
from converter.tools.micro.order import check_order

#: What is computed once of a row by what is frozen in front, and what a step on that is called behind its own name.
FEATURES, _ON_FEATURES = "features", "_features"
#: Signatures that the session of a sketch calls, where there is no step on features; others are left out.
_CALLED = ("train", "accumulate", "apply", "evaluate", "infer")
#: Roles that it fills, and reads.
_TAKEN = {"input", "target", "weight", "learning_rate", "state", "gradient"}
_GIVEN = {"loss", "correct", "figure", "output", "state", "gradient"}
Role = Literal["Value", "Weight", "Rate", "State", "Gradient", "Result", "Feature"]


@dataclass(frozen=True)
class Binding:
    """What an input is filled with, or what an output is.

    Attributes:
        role: which kind.
        index: its number among those of the kind.
        nbytes: of the whole tensor.
    """

    role: Role
    index: int
    nbytes: int


@dataclass(frozen=True)
class Entry:
    """A signature, whose graph is the first of a model of its own.

    Attributes:
        name: in the manifest.
        graphs: its graph and those that it runs (`SubGraphT`), numbered as in a file whose first it is.
        rows: of a call; 0 where it takes none.
        whole: whether rows influence each other.
        inputs, outputs: in the order of the graph.
        places: of each operator of the graph its place among those of the signature in the file.
    """

    name: str
    graphs: tuple[Any, ...]
    rows: int
    whole: bool
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    places: tuple[int, ...]


def check(manifest: Manifest) -> None:
    """Raises UsageError for a program of another target or state, UnsupportedError for what no session of C++ calls."""
    if manifest.target != "tflm":
        raise UsageError(
            f"the program is built for {manifest.target}, and microcontrollers run those of tflm: build it with "
            "target='tflm'",
            page="targets",
        )
    if manifest.state != "stateless":
        raise UsageError(
            f"the state of the program is {manifest.state!r}, and a sketch passes it in and out: build it without "
            "'state', or with state='stateless'",
            page="targets",
        )
    for name in called(manifest):
        signature = manifest.signatures[name]
        strange = [s for s in signature.inputs if s.role not in _TAKEN]
        strange += [s for s in signature.outputs if s.role not in _GIVEN]
        if strange:
            raise UnsupportedError(
                f"signature {name!r} has {strange[0].name!r} ({strange[0].role}), which a session in C++ "
                f"does not know: leave it out by signatures={[n for n in manifest.signatures if n != name]}, or train "
                "on a phone",
                page="targets",
            )


def called(manifest: Manifest) -> list[str]:
    """Return the names of the signatures that a session calls: a step on features replaces a whole one."""
    step = step_of(manifest)
    known = [name for name in _CALLED if name in manifest.signatures]
    return known if step == manifest.step else [FEATURES, step, *(name for name in known if name != manifest.step)]


def left_out(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the signatures that a session neither calls nor has another for."""
    return tuple(name for name in manifest.signatures if name not in (*called(manifest), manifest.step))


def step_of(manifest: Manifest) -> str:
    """Return the name of the signature that a step is made with."""
    on_features = manifest.step + _ON_FEATURES
    return on_features if {FEATURES, on_features} <= manifest.signatures.keys() else manifest.step


def features(manifest: Manifest) -> list[TensorSpec]:
    """Return what is kept of a row for steps on it; nothing where steps take rows."""
    return [] if step_of(manifest) == manifest.step else list(manifest.signatures[FEATURES].giving("output"))


def row_values(manifest: Manifest) -> list[TensorSpec]:
    """Return what a row consists of: what the model takes in the order of the step, then the targets."""
    step = manifest.signatures[manifest.step]
    return [*step.taking("input"), *step.taking("target")]


def figures(manifest: Manifest) -> list[TensorSpec]:
    """Return what `evaluate` gives: the loss, then what is counted."""
    signature = manifest.signatures.get("evaluate")
    if signature is None:
        return []
    return [spec for role in ("loss", "correct", "figure") for spec in signature.outputs if spec.role == role]


def gradients(manifest: Manifest) -> list[TensorSpec]:
    """Return what gradients are added up in, where a step is several calls."""
    return [] if manifest.step != "accumulate" else list(manifest.signatures["accumulate"].giving("gradient"))


def entries(program: ProgramFile) -> list[Entry]:
    """Return the signatures of a program that `check` lets through; inputs of `int8_values` take these integers."""
    manifest, integers = program.manifest, int8_values(program)
    model = generated.Model.GetRootAs(program.data, 0)
    defined = _defined(model)
    return [_entry(manifest, name, model, defined[name], integers) for name in called(manifest)]


def int8_values(program: ProgramFile) -> dict[int, Int8Scale]:
    """Return the values of a row that every signature makes the same int8 of before all else, by their numbers."""
    manifest, model = program.manifest, generated.Model.GetRootAs(program.data, 0)
    defined, found = _defined(model), dict[int, set[Int8Scale | None]]()
    for name in called(manifest):
        stored, numbers = defined[name], _numbers(manifest, name)
        graph = generated.SubGraphT.InitFromObj(model.Subgraphs(stored.SubgraphIndex()))
        signature, taken = manifest.signatures[name], _names(stored.Inputs, stored.InputsLength())
        roles = _roles(manifest, name)
        for tensor in map(int, graph.inputs):
            spec = _spec(signature.inputs, taken[tensor])
            if roles[spec.role] == "Value":
                found.setdefault(numbers["Value", spec.name], set()).add(int8_input(model, graph, tensor))
    return {number: scale for number, scales in found.items() for scale in scales if len(scales) == 1 and scale}


def _defined(model: Any) -> dict[str, Any]:
    known = [model.SignatureDefs(i) for i in range(model.SignatureDefsLength())]
    return {stored.SignatureKey().decode(): stored for stored in known}


def _roles(manifest: Manifest, name: str) -> dict[str, Role]:
    """Return what tensors of a signature are, by their roles in the manifest."""
    roles = dict(_ROLES)
    if features(manifest) and name in (FEATURES, step_of(manifest)):
        roles["output" if name == FEATURES else "input"] = "Feature"
    return roles


def _entry(manifest: Manifest, name: str, model: Any, stored: Any, integers: Mapping[int, Int8Scale]) -> Entry:
    signature = manifest.signatures[name]
    graph = generated.SubGraphT.InitFromObj(model.Subgraphs(stored.SubgraphIndex()))
    taken = _names(stored.Inputs, stored.InputsLength())
    given = _names(stored.Outputs, stored.OutputsLength())
    numbers, roles = _numbers(manifest, name), _roles(manifest, name)
    specs = [_spec(signature.inputs, taken[int(index)]) for index in graph.inputs]
    results = [_spec(signature.outputs, given[int(index)]) for index in graph.outputs]
    for spec, index in zip([*specs, *results], [*graph.inputs, *graph.outputs], strict=True):
        _check_size(spec, graph.tensors[int(index)])
    inputs = [_binding(spec, numbers, roles) for spec in specs]
    outputs = tuple(_binding(spec, numbers, roles) for spec in results)
    as_int8 = {i for i, binding in enumerate(inputs) if binding.role == "Value" and binding.index in integers}
    stored_at = {id(operator): place for place, operator in enumerate(graph.operators)}
    take_int8(graph, [int(graph.inputs[i]) for i in as_int8])
    places = tuple(stored_at[id(operator)] for operator in graph.operators)
    inputs = [replace(b, nbytes=b.nbytes // 4) if i in as_int8 else b for i, b in enumerate(inputs)]
    rows = [spec.shape[0] for spec in signature.inputs if spec.role in ("input", "target", "weight")]
    graphs = tuple(with_bodies(model, graph))
    check_order(model, graphs)
    return Entry(name, graphs, rows[0] if rows else 0, bool(signature.mixing), tuple(inputs), outputs, places)


def _numbers(manifest: Manifest, name: str) -> dict[tuple[Role, str], int]:
    """Return the places of tensors among those of their kind."""
    signature = manifest.signatures[name]
    results = (
        figures(manifest) if name == "evaluate" else [s for s in signature.outputs if s.role in ("loss", "output")]
    )
    tensors = [tensor.tensor for tensor in manifest.state_tensors]
    kinds: dict[Role, list[str]] = {
        "Value": [spec.name for spec in row_values(manifest)],
        "Weight": ["weight"],
        "Rate": ["learning_rate"],
        "State": tensors,
        "Gradient": [spec.name for spec in gradients(manifest)],
        "Result": [spec.name for spec in results],
        "Feature": [spec.name for spec in features(manifest)],
    }
    return {(role, name): number for role, names in kinds.items() for number, name in enumerate(names)}


_ROLES: Mapping[str, Role] = {
    "input": "Value", "target": "Value", "weight": "Weight", "learning_rate": "Rate", "state": "State",
    "gradient": "Gradient", "loss": "Result", "correct": "Result", "figure": "Result", "output": "Result",
}  # fmt: skip


def _binding(spec: TensorSpec, numbers: Mapping[tuple[Role, str], int], roles: Mapping[str, Role]) -> Binding:
    role = roles[spec.role]
    return Binding(role, numbers[role, spec.name], nbytes(spec.shape, spec.dtype))


def _check_size(spec: TensorSpec, tensor: Any) -> None:
    """Raises ValueError where a tensor has not as many numbers as a session copies."""
    shape = () if tensor.shape is None else tuple(int(n) for n in tensor.shape)
    if min(shape, default=1) < 1 or nbytes(shape, spec.dtype) != nbytes(spec.shape, spec.dtype):
        raise ValueError(f"{spec.name!r} is {shape} in the file, {spec.shape} in its manifest")


def _names(at: Any, count: int) -> dict[int, str]:
    return {at(i).TensorIndex(): at(i).Name().decode() for i in range(count)}


def _spec(specs: tuple[TensorSpec, ...], name: str) -> TensorSpec:
    return next(spec for spec in specs if spec.name == name)


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of a tensor."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
