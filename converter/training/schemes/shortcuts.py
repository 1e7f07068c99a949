"""Skip-LoRA in a graph: what blocks read, pooled, times two small matrices, is added to what the last layer gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from converter.ir import Graph, Node, Parameter, TensorType, Value, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.support.errors import UsageError
from converter.training.schemes.pooling import Pooling, pooling_of
from converter.training.schemes.scheme import SchemeRow
from converter.training.schemes.skip import SkipLoRA
from converter.training.schemes.structure import Member, members, users

#: What the two factors are called, behind the name of the weight whose input they read.
A, B = "/skip_a", "/skip_b"


@dataclass(frozen=True)
class _Tap:
    """What an adapter reads, and its factors."""

    value: Value
    pooling: Pooling
    a: Parameter
    b: Parameter


def with_skips(graph: Graph, rows: Sequence[SchemeRow]) -> tuple[Graph, list[SchemeRow]]:
    """Adds the ways to the logits that a resolved scheme asks for.

    Before: MatMul(h, head).   After: MatMul(h, head) + sum of MatMul(MatMul(pooled x_k, A_k), B_k).

    Returns:
        The graph, and the scheme with rows for the factors, in which no weight is granted a SkipLoRA any more. What is
        read at other positions than the head's stays without one, which its row says.

    Raises:
        UsageError: the last layer is none that ways can be added to, or none is left.
    """
    if not any(isinstance(row.adapter, SkipLoRA) for row in rows):
        return graph, list(rows)
    by_name = {m.name: m for m in members(graph)}
    readers, batch = graph.consumers(), graph.inputs[0].shape[0]
    head = _head(graph, by_name, readers)
    classes = head.output.shape[-1]
    taps, table, refused = list[_Tap](), list[SchemeRow](), list[str]()
    for row in rows:
        wanted = row.adapter
        if not isinstance(wanted, SkipLoRA):
            table.append(row)
            continue
        read = value_read(graph, by_name[row.parameter], readers)
        pooling = read if isinstance(read, str) else pooling_of(graph, read, head, batch, wanted.parts)
        if isinstance(read, str) or isinstance(pooling, str):
            refused.append(f"{row.parameter} ({pooling})")
            table.append(SchemeRow(row.parameter, 0.0, f"{row.why}; no way from its input: {pooling}"))
            continue
        taps.append(_Tap(read, pooling, *_factors(row.parameter, wanted, pooling.width(read), classes)))
        why = f"{wanted}, from the input of {row.parameter} to the logits, {pooling}"
        table.append(SchemeRow(row.parameter, 0.0, f"{row.why}: frozen, a way from its input to the logits trains"))
        table += [SchemeRow(taps[-1].a.name, 1.0, why), SchemeRow(taps[-1].b.name, 1.0, why)]
    in_parts = any(isinstance(row.adapter, SkipLoRA) and row.adapter.parts > 1 for row in rows)
    if refused and in_parts and all(tap.pooling.parts == 1 for tap in taps):
        raise UsageError(
            f"no Skip-LoRA in parts from the inputs of {'; '.join(refused)}: 'skip-lora-8' reads no parts",
            page="adapters",
        )
    if not taps:
        raise UsageError(
            f"no Skip-LoRA from the inputs of {'; '.join(refused)}: use 'lora', 'head' or rules of other weights",
            page="adapters",
        )
    return _joined(graph, head, taps, batch), table


def values_read(graph: Graph, rows: Sequence[SchemeRow]) -> list[Value]:
    """Return what the ways of a resolved scheme read, each with the rows of a batch as its first axis."""
    readers, by_name = graph.consumers(), {m.name: m for m in members(graph)}
    wanted = [by_name[row.parameter] for row in rows if isinstance(row.adapter, SkipLoRA)]
    return [value for m in wanted if not isinstance(value := value_read(graph, m, readers), str)]


def _head(graph: Graph, by_name: Mapping[str, Member], readers: dict[Value, list[Node]]) -> Node:
    """Return the node that gives the logits: the last product with a kernel, of several that are added up any one."""
    if len(graph.outputs) > 1:
        raise UsageError(
            f"Skip-LoRA leads to the logits of one output, and the model has {', '.join(graph.outputs)}: choose one "
            "of them (outputs=), or another update",
            page="adapters",
        )
    ends = sorted((m for m in by_name.values() if m.ends), key=lambda m: m.last_use)
    sums = {_sum_of(node.outputs[0], readers) for m in ends for _, node in users(m.value, readers)}
    if not ends or (len(ends) > 1 and len(sums) > 1):
        raise UsageError(
            "Skip-LoRA adds to what the last layer gives, and this model does not end in one layer with a kernel, or a "
            f"sum of such, but in {', '.join(m.name for m in ends) or 'none'}: choose another update",
            page="adapters",
        )
    last = ends[-1]
    found = [(view, node) for view, node in users(last.value, readers) if isinstance(node.op, ops.MatMul | ops.Conv2D)]
    if len(found) != 1 or found[0][1].inputs[1] is not found[0][0] or found[0][1].output.shape[:-1] == ():
        raise UsageError(
            f"Skip-LoRA adds to what the last layer gives, and {last.name} is {last.uses}: it must multiply from the "
            "right, once. Choose another update",
            page="adapters",
        )
    return found[0][1]


def _sum_of(value: Value, readers: dict[Value, list[Node]]) -> Value:
    """Return what a value is a term of, where nothing else reads it: the value after all that is added to it."""
    while len(found := readers.get(value, [])) == 1 and isinstance(found[0].op, ops.Add | ops.Reshape):
        value = found[0].output
    return value


def value_read(graph: Graph, member: Member, readers: dict[Value, list[Node]]) -> Value | str:
    """Return what a weight multiplies, rows first and channels last, or why that is not to be read."""
    found = users(member.value, readers)
    if len(found) != 1:
        return f"used {len(found)} times"
    ((view, node),) = found
    if node.op.bodies():
        return "read inside of a loop"
    if not isinstance(node.op, ops.Layer) or node.inputs[1] is not view:
        return f"read by {node.op.name}, not multiplied from the right"
    if isinstance(node.op, ops.MatMul) and node.op.adj_x:
        return "its input is read transposed"
    return _rows_first(graph, node.inputs[0])


def _rows_first(graph: Graph, value: Value) -> Value | str:
    """Return a value as it is before its rows and positions were moved or joined, as for a product of matrices.

    A recurrent net or an attention may have its positions first there: whose numbers are whose is seen before alone.
    """
    rows, producers, found = graph.inputs[0].shape[0], graph.producers(), list[Value]()
    shown: Value | None = value
    while shown is not None:
        if len(shown.shape) > 1 and shown.shape[0] == rows:
            found.append(shown)
        made = producers.get(shown)
        before = made.inputs[0] if made is not None and isinstance(made.op, ops.Reshape | ops.Transpose) else None
        keeps = before is not None and before.shape[-1:] == value.shape[-1:]
        if made is not None and isinstance(made.op, ops.Transpose):
            keeps = keeps and made.op.perm[-1] == len(made.op.perm) - 1
        shown = before if keeps else None
    if found:
        return found[-1]
    return value if rows == 1 else "the rows of a batch are not its first axis"


def _factors(name: str, wanted: SkipLoRA, inputs: int, classes: int) -> tuple[Parameter, Parameter]:
    """Return A, drawn at random, and B, zero."""
    bound = 1 / np.sqrt(inputs)
    drawn = np.random.default_rng((wanted.seed, crc32(name.encode()))).uniform(-bound, bound, (inputs, wanted.rank))
    zeros = np.zeros((wanted.rank, classes), np.float32)
    return Parameter(name + A, drawn.astype(np.float32)), Parameter(name + B, zeros)


def _joined(graph: Graph, head: Node, taps: Sequence[_Tap], batch: int) -> Graph:
    """Return the graph in which what the taps give is added to what the head gives."""
    after = graph.copy()
    factors = [(_add(after, tap.a), _add(after, tap.b)) for tap in taps]

    def add(b: Rewriter, node: Node) -> Value | None:
        if node.outputs[:1] != head.outputs[:1]:
            return None
        result = b(node.op, *node.inputs)
        for tap, (first, second) in zip(taps, factors, strict=True):
            pooled = tap.pooling.current(b).apply(b, b.current(tap.value), batch)
            way = b(ops.MatMul(), b(ops.MatMul(), pooled, first), second)
            result = b(ops.Add(), result, b.reshape(way, result.shape))
        return result

    return rewrite(after, add)


def _add(graph: Graph, parameter: Parameter) -> Value:
    value = Value(TensorType(parameter.model_value.shape, parameter.model_value.dtype), parameter.name)
    graph.parameters[value] = parameter
    return value
