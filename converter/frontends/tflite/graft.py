"""Operators of a file that can stay when some of its weights train, and those that are computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from converter.frontends.tflite.importer import Importer
from converter.frontends.tflite.original import without_marks
from converter.frontends.tflite.reading.file import File, FileOperator, needed
from converter.ir import Builder, Graph, TensorType, Value, ops
from converter.ir.rewrite import eliminate_dead_code
from converter.passes.idioms import with_idioms
from converter.support.errors import NotImportable, PocketuneError


@dataclass(frozen=True, eq=False)
class Graft:
    """A file whose weights were trained, as far as it is known before they are.

    Attributes:
        file: the file.
        weights: names of parameters by the operator that reads them, its number, and the place among its operands.
        graph: what is computed again, None for nothing; inputs and outputs are called as tensors of the file, see
            `tensor_name`. What trains is a parameter of the file's own layout.
        moved: tensors of the file that stand in the place of an output, by that output.
        quantized: outputs that are integers again after `graph`.
        lost: outputs that there is no way to compute.
        reached: outputs that are computed with what trains, but for the replaced one.
        rounding: layers of the file after what trains that round what they read (dynamic range).
        replaced: the output in whose place the model's own stands; None where it is the file's.
    """

    file: File
    weights: Mapping[tuple[int, int], str]
    graph: Graph | None
    moved: Mapping[int, int]
    quantized: Collection[int]
    lost: Collection[int]
    reached: Collection[int]
    rounding: Sequence[str] = ()
    replaced: int | None = None


def tensor_name(number: int) -> str:
    """Return what a graph calls a tensor of the file."""
    return f"t{number}"


@dataclass(frozen=True, eq=False)
class Replaced:
    """What stands in the place of an output of the file.

    Attributes:
        number: the output's tensor.
        value: what is given instead.
        in_range: whether it has the range of what was there.
    """

    number: int
    value: Value
    in_range: bool


def grafted(importer: Importer, replaced: Replaced | None, trained: Collection[str]) -> Graft:
    """Return what stays of a file and what does not.

    Before: x -> f -> g(W) -> h(V) -> output.   After, where W trains: the same, with other numbers in W; where h is
    another now, or g computes on integers: x -> f, and what the import made of the rest.

    Args:
        importer: it has imported what trains, for the rows of the file or for two.
        replaced: a fresh head, or what the model is cut to.
        trained: names of parameters.
    """
    file = importer.file
    kept, weights = _kept(file, importer, trained)
    border = {
        value: number
        for number, value in reversed([*importer.values().items()])
        if number in kept and value not in importer.b.graph.constants
    }
    wanted, moved, quantized, lost = dict[int, Value](), dict[int, int](), set[int](), set[int]()
    for number in dict.fromkeys(file.outputs.values()):
        instead = replaced if replaced is not None and replaced.number == number else None
        if instead is None and number in kept:
            continue
        value = _imported(importer, number) if instead is None else _shaped(importer, file, instead)
        if value is None:
            lost.add(number)
        elif value in border:
            moved[number] = border[value]
        else:
            wanted[number] = value
            if file.tensors[number].is_quantized and (instead is None or instead.in_range):
                quantized.add(number)
    graph = _suffix(importer, border, wanted, trained) if wanted else None
    own = None if replaced is None else replaced.number
    reached = {n for n in file.outputs.values() if n != own and _is_reached(importer, n, trained)}
    return Graft(file, weights, graph, moved, quantized, lost, reached, _rounding(importer, kept, trained), own)


def _is_reached(importer: Importer, number: int, trained: Collection[str]) -> bool:
    """Return whether a tensor of the file is computed with a weight that trains."""
    return any(_trains(importer, operator, trained) for operator in needed(importer.file, [number]))


def _trains(importer: Importer, operator: FileOperator, trained: Collection[str]) -> bool:
    """Return whether an operator reads a weight that trains."""
    read = (importer.uses.get((operator.number, place)) for place in range(len(operator.inputs)))
    return not importer.runs.get(operator.number, set()).isdisjoint(trained) or any(name in trained for name in read)


def _rounding(importer: Importer, kept: Collection[int], trained: Collection[str]) -> list[str]:
    """Return the layers after what trains whose operators, kept, multiply real numbers by integers."""
    file, suffix, found = importer.file, set[int](), dict[str, None]()
    for operator in file.operators:
        given = [i for i in operator.inputs if i in suffix]
        if given or _trains(importer, operator, trained):
            suffix.update(operator.outputs)
        of_integers = any(i >= 0 and file.tensors[i].is_quantized for i in operator.inputs)
        if given and of_integers and not any(file.tensors[i].is_quantized for i in (*given, *operator.outputs)):
            found |= dict.fromkeys(file.layer(i) for i in operator.outputs if i in kept)
    return list(found)


def _kept(file: File, importer: Importer, trained: Collection[str]) -> tuple[set[int], dict[tuple[int, int], str]]:
    """Return the tensors that the file's own operators go on to make, and the weights among their operands that train.

    An operator on integers does not take a weight of real numbers, and those after it do not take what it makes then.
    """
    kept = {i for i, tensor in enumerate(file.tensors) if tensor.array is not None} | {*file.inputs.values(), -1}
    made = {i for operator in file.operators for i in operator.outputs}
    kept.update(i for i in range(len(file.tensors)) if i not in made)
    weights: dict[tuple[int, int], str] = {}
    for operator in file.operators:
        own = {place: importer.uses.get((operator.number, place), "") for place in range(len(operator.inputs))}
        own = {place: name for place, name in own.items() if name in trained}
        if not importer.runs.get(operator.number, set()).isdisjoint(trained):
            continue  # in the subgraphs that it runs
        if kept.issuperset(operator.inputs) and not (own and _on_integers(file, operator, own)):
            kept.update(operator.outputs)
            weights |= {(operator.number, place): name for place, name in own.items()}
    return kept, weights


def _on_integers(file: File, operator: FileOperator, weights: Collection[int]) -> bool:
    """Return whether an operator reads or makes integers besides its weights."""
    read = [i for place, i in enumerate(operator.inputs) if place not in weights and i >= 0]
    return any(file.tensors[i].is_quantized for i in (*read, *operator.outputs))


def _imported(importer: Importer, number: int) -> Value | None:
    """Return what stands for a tensor that the model itself may not give; None where it cannot be imported."""
    try:
        importer.run([number])
        return importer.value(number)
    except (PocketuneError, NotImportable):
        return None


def _shaped(importer: Importer, file: File, replaced: Replaced) -> Value:
    """Return what stands in the place of an output, with as many axes as there were."""
    value, shape = replaced.value, file.tensors[replaced.number].shape
    places = value.shape[1:-1]
    if len(shape) < 2 or len(shape) == value.type.rank or (places and places != (1,) * len(places)):
        return value
    if any(size != 1 for size in shape[1:-1]):
        return value
    return importer.b.reshape(value, (value.shape[0], *shape[1:-1], value.shape[-1]))


def _suffix(
    importer: Importer, border: Mapping[Value, int], wanted: Mapping[int, Value], trained: Collection[str]
) -> Graph:
    """Return what computes some outputs from tensors of the file; what does not train is constant in it."""
    whole = importer.b.graph
    b = Builder(Graph([], dict(whole.constants), dict(whole.parameters)))
    bound: dict[Value, Value] = {}
    for value in _read(whole, border, wanted.values()):
        bound[value] = _fed(b, importer.file, border[value], value)
    graph = b.graph
    for node in whole.nodes:
        graph.nodes.append(replace(node, inputs=tuple(bound.get(v, v) for v in node.inputs)))
    graph.outputs = {tensor_name(number): bound.get(value, value) for number, value in wanted.items()}
    frozen = {v: p for v, p in graph.parameters.items() if p.name not in trained}
    graph.parameters = {v: p for v, p in graph.parameters.items() if v not in frozen}
    graph.constants |= {v: p.model_value for v, p in frozen.items()}
    return with_idioms(without_marks(eliminate_dead_code(graph)))


def _read(graph: Graph, border: Collection[Value], wanted: Collection[Value]) -> list[Value]:
    """Return the tensors of the file that some values are computed from."""
    producers, pending, seen = graph.producers(), list(wanted), set[Value]()
    found = dict[Value, None]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in border:
            found[value] = None
        elif value in producers:
            pending += producers[value].inputs
    return list(found)


def _fed(b: Builder, file: File, number: int, value: Value) -> Value:
    """Return an input for a tensor of the file, as what stands for it in the graph."""
    tensor = file.tensors[number]
    assert tensor.dtype is not None
    if tensor.quantization is not None:
        given = b.input(tensor_name(number), TensorType(value.shape, tensor.dtype, tensor.quantization))
        return b(ops.Real(tensor.quantization), given)
    given = b.input(tensor_name(number), TensorType(value.shape, tensor.dtype))
    return given if tensor.dtype == value.dtype else b(ops.Cast(value.dtype), given)
