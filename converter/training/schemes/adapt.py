"""Adapters: a frozen weight W computes as W + alpha / rank * A B, or as W with D added to some of its channels.

What trains is small, A and B, or D, and W keeps the fast kernel of a constant. `dora.py` has the lengths of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from converter.ir import Graph, Node, Parameter, TensorType, Value, View, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.support.errors import UnsupportedError
from converter.training.schemes.channels import Channels, problem
from converter.training.schemes.dora import MAGNITUDE, gains, with_gains
from converter.training.schemes.dora import problem as problem_of_dora
from converter.training.schemes.lora import Contraction, LoRA, Use, find_place
from converter.training.schemes.scheme import SchemeRow
from converter.training.schemes.shortcuts import with_skips
from converter.training.schemes.skip import SkipLoRA

#: What the two factors of a weight are called, behind its name.
A, B = "/lora_a", "/lora_b"
#: The same of which input channels train, and of what is added to them.
CHOICE, CHANGE = "/channels", "/change"


@dataclass(frozen=True)
class Adapter:
    """An adapted weight.

    Attributes:
        weight: its name.
        a, b: its factors; or the choice of channels, and what is added to them.
        inputs: how many input channels the weight has.
        view: from the weight as the model has it to the layout of the product A B, [..., inputs, outputs].
        scale: what that product is multiplied by.
        dropout: how likely an input of A is zero in a step.
        number: of that dropout, which no other in the model has.
        magnitude: the lengths of the columns of W + scale * A B, where they train (DoRA).
        redrawn: whether the weight is state, which takes up what was added to its channels.
    """

    weight: str
    a: Parameter
    b: Parameter
    inputs: int
    view: View
    scale: float = 1.0
    dropout: float = 0.0
    number: int = 0
    magnitude: Parameter | None = None
    redrawn: bool = False


def adapt(graph: Graph, rows: list[SchemeRow]) -> tuple[Graph, list[SchemeRow], list[Adapter]]:
    """Adds the adapters that a resolved scheme asks for.

    Before: MatMul(x, W).   After: MatMul(x, W) + MatMul(MatMul(x, A) * scale, B).
    Before: Conv2D(x, W).   After: Conv2D(x, W) + Conv2D 1x1 (Conv2D(x, A) * scale, B).
    With chosen channels:   After: MatMul(x, W) + MatMul(Gather(x, channels), D), and likewise for Conv2D.
    Where these are redrawn W stays a parameter, of the kind `base`.
    Ways to the logits are in `shortcuts.py`.
    Of DoRA the first summand and B are multiplied by a number for each output (`dora.gains`).

    W + A B is never made: the narrow products cost rank * (inputs + outputs) for each row instead of inputs * outputs
    for each step, and the gradient of W is not computed at all; of chosen channels only x[channels] is kept for the
    backward pass. A weight with several uses has one adapter.

    Returns:
        The graph, the scheme with a row for each factor, and the adapters.

    Raises:
        UnsupportedError: a weight has no adapter; all are named.
    """
    graph, rows = with_skips(graph, rows)
    names, readers = graph.parameter_names(), graph.consumers()
    after, table, adapters, refused = graph.copy(), list[SchemeRow](), list[Adapter](), list[str]()
    number = 1 + max((node.op.key for node in graph.nodes if isinstance(node.op, ops.Dropout | ops.CallKey)), default=0)
    made: dict[Value, tuple[Adapter, Contraction, Value, Value]] = {}  # by the result of a contraction
    magnitudes: dict[str, Value] = {}  # by the weight
    found: dict[str, Value] = {}  # what they multiply by
    for row in rows:
        table.append(SchemeRow(row.parameter, row.fraction, row.why))
        if (wanted := row.adapter) is None or isinstance(wanted, SkipLoRA):
            continue
        place = find_place(names[row.parameter], readers)
        why_not = _problem(wanted, place, made)
        if why_not is not None or isinstance(place, str):
            refused.append(f"{row.parameter} ({why_not})")
            continue
        named = row.parameter, place
        adapter, factors = _lora(*named, wanted) if isinstance(wanted, LoRA) else _channels(*named, wanted)
        adapter = replace(adapter, number=number + len(adapters))
        made |= dict.fromkeys(place.uses, (adapter, place, _add(after, adapter.a), _add(after, adapter.b)))
        if adapter.magnitude is not None:
            magnitudes[adapter.weight] = _add(after, adapter.magnitude)
        if adapter.redrawn:
            weight = names[adapter.weight]
            after.parameters[weight] = replace(after.parameters[weight], kind="base")
        adapters.append(adapter)
        table += factors
    if refused:
        example = refused[0].partition(" (")[0]
        raise UnsupportedError(
            f"no adapter for {'; '.join(refused)}. Leave these weights out: name the others, or add a later rule, "
            f"{example!r}: 0 (frozen) or 1 (trained whole).",
            page="adapters",
        )

    def with_adapter(b: Rewriter, node: Node) -> Value | None:
        if not node.outputs or node.outputs[0] not in made:
            return None
        adapter, place, first, second = made[node.outputs[0]]
        if adapter.a.kind == "choice":
            return _with_chosen(b, node, adapter, place, first, second)
        result = b(node.op, *node.inputs)
        if (magnitude := magnitudes.get(adapter.weight)) is not None:
            operand = place.uses[node.outputs[0]].operand
            if adapter.weight not in found:
                found[adapter.weight] = gains(b, node, operand, adapter.scale, first, second, magnitude)
            result, second = with_gains(b, result, second, found[adapter.weight], operand)
        return b(ops.Add(), result, _low_rank(b, node, adapter, place, first, second))

    return rewrite(after, with_adapter) if made else graph, table, adapters


def _problem(wanted: LoRA | Channels, place: Contraction | str, made: dict) -> str | None:
    """Return why a weight has no such adapter, if so."""
    if isinstance(place, str):
        return place
    if any(result in made for result in place.uses):
        return "multiplied with another one"
    if isinstance(wanted, Channels):
        return problem(place)
    return problem_of_dora(place) if wanted.dora else None


def _lora(name: str, place: Contraction, lora: LoRA) -> tuple[Adapter, list[SchemeRow]]:
    """Return a, drawn at random, and B, zero: the model begins as it was."""
    a, b = (*place.a[:-1], lora.rank), (*place.b[:-2], lora.rank, place.b[-1])
    bound = 1 / np.sqrt(place.fan_in)
    drawn = np.random.default_rng((lora.seed, crc32(name.encode()))).uniform(-bound, bound, a)
    first, second = Parameter(name + A, drawn.astype(np.float32)), Parameter(name + B, np.zeros(b, np.float32))
    why = f"{lora}, of {name}"
    if lora.rank > place.largest_rank:
        why += f"; more numbers than the weight has, above rank {place.largest_rank}"
    rows = [
        SchemeRow(first.name, float(lora.train_a), why if lora.train_a else f"{why}; stays as drawn"),
        SchemeRow(second.name, 1.0, why),
    ]
    made = Adapter(name, first, second, place.a[-2], place.view, lora.scale, float(lora.dropout))
    if not lora.dora:
        return made, rows
    # What it begins as is known when the weight is rounded: `converter.driver.features.dora`.
    length = Parameter(name + MAGNITUDE, np.ones(place.b[-1], np.float32))
    return replace(made, magnitude=length), [*rows, SchemeRow(length.name, 1.0, f"the length of each column, {why}")]


def _channels(name: str, place: Contraction, channels: Channels) -> tuple[Adapter, list[SchemeRow]]:
    """Return the first channels, and zeros that are added to them."""
    *lead, inputs, _ = place.a
    many = channels.of(inputs)
    choice = Parameter(name + CHOICE, np.arange(many, dtype=np.int32), kind="choice")
    change = Parameter(name + CHANGE, np.zeros((*lead, many, place.b[-1]), np.float32))
    until = "redrawn" if channels.redrawn else "chosen"
    why = f"added to {many} of the {inputs} input channels of {name}, the first ones until they are {until}"
    adapter = Adapter(name, choice, change, inputs, place.view, redrawn=channels.redrawn)
    return adapter, [SchemeRow(change.name, 1.0, why)]


def _add(graph: Graph, parameter: Parameter) -> Value:
    array = parameter.model_value
    value = Value(TensorType(array.shape, array.dtype), parameter.name)
    graph.parameters[value] = parameter
    return value


def _low_rank(b: Rewriter, node: Node, adapter: Adapter, place: Contraction, first: Value, second: Value) -> Value:
    """Return what A B adds to the result of a contraction."""
    use = place.uses[node.outputs[0]]
    x = node.inputs[1 - use.operand]
    if adapter.dropout:
        x = b(ops.Dropout(adapter.dropout, label="LoRA dropout", key=adapter.number), x)
    x = _times_inputs(b, node, use, x)

    def scaled(value: Value) -> Value:
        return value if adapter.scale == 1 else b(ops.Mul(), value, adapter.scale)

    def product() -> Value:
        match node.op:
            case ops.MatMul(adj_x=adj_x) if use.operand == 1 and not use.transposed:
                return b(ops.MatMul(), scaled(b(ops.MatMul(adj_x), x, first)), second)
            case ops.MatMul(adj_x=adj_x) if use.operand == 1:
                return b(ops.MatMul(adj_y=True), scaled(b(ops.MatMul(adj_x, True), x, second)), first)
            case ops.MatMul(adj_y=adj_y) if use.transposed:
                return b(ops.MatMul(True), second, scaled(b(ops.MatMul(True, adj_y), first, x)))
            case ops.MatMul(adj_y=adj_y):
                return b(ops.MatMul(), first, scaled(b(ops.MatMul(False, adj_y), second, x)))
        inner = b(node.op, x, b.transpose(first, (3, 0, 1, 2)))
        outputs, rank = second.shape[1], second.shape[0]
        return b(ops.Conv2D(), scaled(inner), b.reshape(b.transpose(second, (1, 0)), (outputs, 1, 1, rank)))

    return _times_outputs(b, use, product())


def _times_inputs(b: Rewriter, node: Node, use: Use, x: Value) -> Value:
    """Return the other operand of a contraction times the factor of the weight's inputs, if it has one."""
    if use.scale is None or not use.scales_inputs:
        return x
    return b(ops.Mul(), x, _along(b, b.current(use.scale), last=_channels_are_last(node, use.operand)))


def _times_outputs(b: Rewriter, use: Use, y: Value) -> Value:
    """Return what an adapter adds times the factor of the weight's outputs, if it has one."""
    if use.scale is None or use.scales_inputs:
        return y
    return b(ops.Mul(), y, _along(b, b.current(use.scale), last=use.operand == 1))


def _along(b: Rewriter, scale: Value, last: bool) -> Value:
    """Return one number, or one for each place along the last axis or the one before it, that broadcasts so."""
    return b.reshape(scale, (scale.type.size,) if last else (scale.type.size, 1))


def _channels_are_last(node: Node, operand: int) -> bool:
    """Return whether a contraction reads its other operand along the last axis; else along the one before."""
    if not isinstance(node.op, ops.MatMul):
        return True
    return not node.op.adj_x if operand == 1 else node.op.adj_y


def _with_chosen(b: Rewriter, node: Node, adapter: Adapter, place: Contraction, choice: Value, change: Value) -> Value:
    """Return a contraction with D added to the chosen channels of its weight."""
    use = place.uses[node.outputs[0]]
    operand = use.operand
    read, weight = node.inputs[1 - operand], node.inputs[operand]
    axis = len(read.shape) - (1 if _channels_are_last(node, operand) else 2)
    x = b(ops.Probe(adapter.weight, axis), read)
    picked = b(ops.Gather(axis, distinct=True), _times_inputs(b, node, use, x), choice)

    def product() -> Value:
        match node.op:
            case ops.MatMul(adj_x=adj_x) if operand == 1:
                return b(ops.MatMul(adj_x), picked, change)
            case ops.MatMul(adj_y=adj_y):
                return b(ops.MatMul(True, adj_y), change, picked)
        return b(node.op, picked, b.transpose(change, (3, 0, 1, 2)))

    whole = b(node.op, *((x, weight) if operand == 1 else (weight, x)))
    return b(ops.Add(), whole, _times_outputs(b, use, product()))
