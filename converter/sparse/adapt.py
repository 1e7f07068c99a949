"""Low-rank adapters: a frozen weight W computes as W + alpha / rank * A B, and only A and B train."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from converter.errors import UnsupportedError
from converter.ir import Graph, Node, Parameter, TensorType, Value, View, ops
from converter.passes.rewrite import Rewriter, rewrite
from converter.sparse.lora import LoRA, Place, find_place
from converter.sparse.scheme import Row

#: What the two factors of a weight are called, behind its name.
A, B = "/lora_a", "/lora_b"


@dataclass(frozen=True)
class Adapter:
    """An adapted weight.

    Attributes:
        weight: its name.
        a, b: its factors.
        view: from the weight as the model has it to the layout of the product A B.
        scale: what that product is multiplied by.
    """

    weight: str
    a: Parameter
    b: Parameter
    view: View
    scale: float


def adapt(graph: Graph, rows: list[Row]) -> tuple[Graph, list[Row], list[Adapter]]:
    """Adds the adapters that a resolved scheme asks for.

    Before: MatMul(x, W).   After: MatMul(x, W) + MatMul(MatMul(x, A) * scale, B).
    Before: Conv2D(x, W).   After: Conv2D(x, W) + Conv2D 1x1 (Conv2D(x, A) * scale, B).

    W + A B is never made: the narrow products cost rank * (inputs + outputs) for each row instead of inputs * outputs
    for each step, and the gradient of W is not computed at all. A weight with several uses has one pair of factors.

    Returns:
        The graph, the scheme with a row for each factor, and the adapters.

    Raises:
        UnsupportedError: a weight has no adapter; all are named.
    """
    names, readers = graph.parameter_names(), graph.consumers()
    after, table, adapters, refused = graph.copy(), list[Row](), list[Adapter](), list[str]()
    made: dict[Value, tuple[LoRA, Place, Value, Value]] = {}  # by the result of a contraction
    for row in rows:
        table.append(Row(row.parameter, row.fraction, row.why))
        if (lora := row.adapter) is None:
            continue
        place = find_place(names[row.parameter], readers)
        if isinstance(place, str) or any(result in made for result in place.uses):
            refused.append(f"{row.parameter} ({place if isinstance(place, str) else 'multiplied with another one'})")
            continue
        a, b = _factors(row.parameter, lora, place)
        made |= dict.fromkeys(place.uses, (lora, place, _add(after, a), _add(after, b)))
        adapters.append(Adapter(row.parameter, a, b, place.view, lora.scale))
        why = f"{lora}, of {row.parameter}"
        if lora.rank > place.largest_rank:
            why += f"; more numbers than the weight has, above rank {place.largest_rank}"
        table.append(Row(a.name, float(lora.train_a), why if lora.train_a else f"{why}; stays as drawn"))
        table.append(Row(b.name, 1.0, why))
    if refused:
        example = refused[0].partition(" (")[0]
        raise UnsupportedError(
            f"no LoRA for {'; '.join(refused)}. Leave these weights out: name the others, or add a rule behind, "
            f"{example!r}: 0 (frozen) or 1 (trained whole)."
        )

    def with_adapter(b: Rewriter, node: Node) -> Value | None:
        if not node.outputs or node.outputs[0] not in made:
            return None
        lora, place, first, second = made[node.outputs[0]]
        return b(ops.Add(), b(node.op, *node.inputs), _change(b, node, lora, place, first, second))

    return rewrite(after, with_adapter) if made else graph, table, adapters


def _factors(name: str, lora: LoRA, place: Place) -> tuple[Parameter, Parameter]:
    """A, drawn at random, and B, zero: the model begins as it was."""
    a, b = (*place.a[:-1], lora.rank), (*place.b[:-2], lora.rank, place.b[-1])
    bound = 1 / np.sqrt(place.fan_in)
    drawn = np.random.default_rng((lora.seed, crc32(name.encode()))).uniform(-bound, bound, a)
    return Parameter(name + A, drawn.astype(np.float32)), Parameter(name + B, np.zeros(b, np.float32))


def _add(graph: Graph, parameter: Parameter) -> Value:
    value = Value(TensorType(parameter.model_value.shape), parameter.name)
    graph.parameters[value] = parameter
    return value


def _change(b: Rewriter, node: Node, lora: LoRA, place: Place, first: Value, second: Value) -> Value:
    """What the adapter adds to the result of a contraction."""
    operand, transposed = place.uses[node.outputs[0]]
    x = node.inputs[1 - operand]

    def scaled(value: Value) -> Value:
        return value if lora.scale == 1 else b(ops.Mul(), value, lora.scale)

    match node.op:
        case ops.MatMul(adj_x=adj_x) if operand == 1 and not transposed:
            return b(ops.MatMul(), scaled(b(ops.MatMul(adj_x), x, first)), second)
        case ops.MatMul(adj_x=adj_x) if operand == 1:
            return b(ops.MatMul(adj_y=True), scaled(b(ops.MatMul(adj_x, True), x, second)), first)
        case ops.MatMul(adj_y=adj_y) if transposed:
            return b(ops.MatMul(True), second, scaled(b(ops.MatMul(True, adj_y), first, x)))
        case ops.MatMul(adj_y=adj_y):
            return b(ops.MatMul(), first, scaled(b(ops.MatMul(False, adj_y), second, x)))
    inner = b(node.op, x, b.transpose(first, (3, 0, 1, 2)))
    outputs, rank = second.shape[1], second.shape[0]
    return b(ops.Conv2D(), scaled(inner), b.reshape(b.transpose(second, (1, 0)), (outputs, 1, 1, rank)))
