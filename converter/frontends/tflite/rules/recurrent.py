"""Recurrent layers that are one operator: their state starts with zeros in each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from converter.frontends.tflite.folding import CautiousBuilder
from converter.frontends.tflite.registry import Call, Result, Rules, streams
from converter.frontends.tflite.rules.activations import KINDS, activated
from converter.ir import Builder, Value, ops
from converter.support.errors import NotImportable

rule = Rules()

#: Operators of more steps than come to so many nodes are loops.
MOST_UNROLLED = 256
#: What the kernel adds to the variance of a layer normalization.
_EPSILON = 1e-8
#: Gates in the order in which operands are: of the input (left out where it is 1 - forget), forget, cell, output.
_GATES = ("input", "forget", "cell", "output")
#: Operands of an LSTM by place: what each is called behind its layer.
LSTM_WEIGHTS: dict[int, str] = {
    **{1 + i: f"kernel_{gate}" for i, gate in enumerate(_GATES)},
    **{5 + i: f"recurrent_{gate}" for i, gate in enumerate(_GATES)},
    **{9 + i: f"peephole_{gate}" for i, gate in enumerate(("input", "forget", "output"))},
    **{12 + i: f"bias_{gate}" for i, gate in enumerate(_GATES)},
    16: "projection_kernel",
    17: "projection_bias",
    **{20 + i: f"norm_{gate}" for i, gate in enumerate(_GATES)},
}
RNN_WEIGHTS = {1: "kernel", 2: "recurrent", 3: "bias"}
BIDIRECTIONAL_RNN_WEIGHTS = {
    **{place: f"forward_{name}" for place, name in RNN_WEIGHTS.items()},
    **{place + 4: f"backward_{name}" for place, name in RNN_WEIGHTS.items()},
}
BIDIRECTIONAL_LSTM_WEIGHTS = {
    **{place: f"forward_{name}" for place, name in LSTM_WEIGHTS.items() if place < 18},
    **{place + 17: f"backward_{name}" for place, name in LSTM_WEIGHTS.items() if place < 18},
}
#: A step: the builder, what all steps read, what it is handed, and its row; returns what it hands on.
Step = Callable[[Builder, Sequence[Value], Sequence[Value], Value], list[Value]]


def _over_time(b: Builder, step: Step, fixed: Sequence[Value], state: list[Value], x: Value, reverse: bool) -> Value:
    """Return what the steps hand on first, [T, B, ...], of the rows of x [T, B, ...]; `reverse`: from the last."""
    inner = CautiousBuilder()
    given = [inner.input(f"operand_{k}", v.type) for k, v in enumerate([*fixed, *state])]
    row = inner.input("row", x.type.with_shape(x.shape[1:]))
    made = step(inner, given[: len(fixed)], given[len(fixed) :], row)
    length = x.shape[0]
    if length * len(inner.graph.nodes) > MOST_UNROLLED:
        inner.graph.outputs = {f"result_{k}": v for k, v in enumerate([*made, made[0]])}
        return b.node(ops.Scan(inner.graph, length, len(state), 1, reverse), *fixed, *state, x).outputs[-1]
    found: list[Value] = []
    for i in reversed(range(length)) if reverse else range(length):
        cut = b(ops.Slice((i, *(0 for _ in x.shape[1:])), (1, *x.shape[1:])), x)
        state = step(b, fixed, state, b.reshape(cut, x.shape[1:]))
        found.append(b.reshape(state[0], (1, *state[0].shape)))
    return b(ops.Concat(0), *(found[::-1] if reverse else found)) if len(found) > 1 else found[0]


def _steps_first(call: Call, x: Value, default: bool) -> Value:
    """Return x [B, T, I] as [T, B, I]. Raise NotImportable for one step a call: a net that streams."""
    steps = x if call.option("timeMajor", default) else call.b.transpose(x, (1, 0, 2))
    if steps.shape[0] == 1:
        raise NotImportable(*streams(call.operator.kind))
    return steps


def _rows_first(call: Call, y: Value, default: bool) -> Value:
    return y if call.option("timeMajor", default) else call.b.transpose(y, (1, 0, 2))


def _projected(b: Builder, x: Value, kernel: Value, bias: Value | None = None) -> Value:
    y = b(ops.MatMul(adj_y=True), x, kernel)
    return y if bias is None else b(ops.Add(), y, bias)


def _zeros(b: Builder, rows: int, width: int) -> Value:
    return b.broadcast_to(b.constant(0.0), (rows, width))


def _rnn(call: Call, x: Value, weights: Sequence[Value | None], reverse: bool = False) -> Value:
    """x [T, B, I] through the plain recurrence by kernel, recurrent kernel and bias -> [T, B, N]."""
    b, (kernel, recurrent, bias) = call.b, weights
    if kernel is None or recurrent is None:
        raise NotImportable(f"{call.operator.kind} without weights")
    kind = KINDS[call.option("fusedActivationFunction", 0)]

    def step(b: Builder, fixed: Sequence[Value], state: Sequence[Value], row: Value) -> list[Value]:
        return [activated(b, kind, b(ops.Add(), row, _projected(b, state[0], fixed[0])))]

    flat = b.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    rows = b.reshape(_projected(b, flat, kernel, bias), (*x.shape[:2], kernel.shape[0]))
    return _over_time(b, step, [recurrent], [_zeros(b, x.shape[1], kernel.shape[0])], rows, reverse)


def _lstm(call: Call, x: Value, w: dict[str, Value], reverse: bool = False) -> Value:
    """x [T, B, I] through an LSTM -> [T, B, N], by its weights under the names of LSTM_WEIGHTS."""
    b, gates = call.b, [gate for gate in _GATES if f"kernel_{gate}" in w]
    if not {"forget", "cell", "output"} <= set(gates) or any(f"recurrent_{gate}" not in w for gate in gates):
        raise NotImportable(f"{call.operator.kind} without the weights of a gate")
    kind = KINDS[call.option("fusedActivationFunction", 0)]
    clips = float(call.option("cellClip", 0.0)), float(call.option("projClip", 0.0))
    cells, width = w["kernel_cell"].shape[0], w["recurrent_cell"].shape[1]
    normed = "norm_cell" in w  # its bias comes behind the normalization
    kernel = b(ops.Concat(0), *(w[f"kernel_{gate}"] for gate in gates))
    zeros = b.constant(0.0)
    biases = [w.get(f"bias_{gate}", b.broadcast_to(zeros, (cells,))) for gate in gates]
    flat = b.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
    rows = _projected(b, flat, kernel, None if normed else b(ops.Concat(0), *biases))
    rows = b.reshape(rows, (*x.shape[:2], len(gates) * cells))
    fixed = {"recurrent": b(ops.Concat(0), *(w[f"recurrent_{gate}"] for gate in gates))}
    fixed |= {name: v for name, v in w.items() if name.startswith(("peephole", "projection", "norm"))}
    fixed |= {f"bias_{gate}": bias for gate, bias in zip(gates, biases, strict=True) if normed}
    names = list(fixed)

    def step(b: Builder, values: Sequence[Value], state: Sequence[Value], row: Value) -> list[Value]:
        own, (h, c) = dict(zip(names, values, strict=True)), state
        summed = b(ops.Add(), row, _projected(b, h, own["recurrent"]))

        def gate(name: str, cell: Value) -> Value:
            at = gates.index(name) * cells
            z = b(ops.Slice((0, at), (summed.shape[0], cells)), summed)
            if (peephole := own.get(f"peephole_{name}")) is not None:
                z = b(ops.Add(), z, b(ops.Mul(), cell, peephole))
            if (scale := own.get(f"norm_{name}")) is not None:
                z = b(ops.Add(), b(ops.Mul(), _normalized(b, z), scale), own[f"bias_{name}"])
            return activated(b, kind, z) if name == "cell" else b(ops.Logistic(), z)

        forget = gate("forget", c)
        taken = gate("input", c) if "input" in gates else b(ops.Sub(), b.constant(1.0), forget)
        c = b(ops.Add(), b(ops.Mul(), forget, c), b(ops.Mul(), taken, gate("cell", c)))
        c = _clipped(b, c, clips[0])
        h = b(ops.Mul(), gate("output", c), activated(b, kind, c))
        if "projection_kernel" in own:
            h = _clipped(b, _projected(b, h, own["projection_kernel"], own.get("projection_bias")), clips[1])
        return [h, c]

    state = [_zeros(b, x.shape[1], width), _zeros(b, x.shape[1], cells)]
    return _over_time(b, step, list(fixed.values()), state, rows, reverse)


def _normalized(b: Builder, x: Value) -> Value:
    centered = b(ops.Sub(), x, b(ops.Mean((1,), True), x))
    variance = b(ops.Mean((1,), True), b(ops.Mul(), centered, centered))
    return b(ops.Div(), centered, b(ops.Sqrt(), b(ops.Add(), variance, _EPSILON)))


def _clipped(b: Builder, x: Value, most: float) -> Value:
    return x if most <= 0 else b(ops.Maximum(), b(ops.Minimum(), x, most), -most)


def _named(names: dict[int, str], prefix: str, operands: Sequence[Value | None]) -> dict[str, Value]:
    return {
        name.removeprefix(prefix): value
        for place, name in names.items()
        if name.startswith(prefix) and place < len(operands) and (value := operands[place]) is not None
    }


@rule("UNIDIRECTIONAL_SEQUENCE_RNN")
def unidirectional_rnn(call: Call, x: Value, *weights: Value | None) -> Result:
    """h = activation(W x + R h + bias), step by step."""
    return _rows_first(call, _rnn(call, _steps_first(call, x, False), weights[:3]), False)


@rule("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_lstm(call: Call, x: Value, *weights: Value | None) -> Result:
    """An LSTM with all that the operator has: coupled gates, peepholes, projection, layer normalization, clipping."""
    if call.option("diagonalRecurrentTensors", False):
        raise NotImportable("UNIDIRECTIONAL_SEQUENCE_LSTM with diagonal recurrent weights")
    named = _named(LSTM_WEIGHTS, "", (x, *weights))
    return _rows_first(call, _lstm(call, _steps_first(call, x, False), named), False)


def _both(call: Call, forward: Value, backward: Value, time_major: bool) -> Result:
    ways = [_rows_first(call, y, time_major) for y in (forward, backward)]
    return call.b(ops.Concat(2), *ways) if call.option("mergeOutputs", False) else ways


@rule("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(call: Call, x: Value, *weights: Value | None) -> Result:
    """One way and the other, side by side where they are merged."""
    if any(v is not None for v in weights[8:]):
        raise NotImportable("BIDIRECTIONAL_SEQUENCE_RNN with a second input")
    steps = _steps_first(call, x, False)
    return _both(call, _rnn(call, steps, weights[:3]), _rnn(call, steps, weights[4:7], reverse=True), False)


@rule("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(call: Call, x: Value, *weights: Value | None) -> Result:
    """One way and the other, side by side where they are merged."""
    if any(v is not None for v in weights[38:]):
        raise NotImportable("BIDIRECTIONAL_SEQUENCE_LSTM with a second input")
    steps, operands = _steps_first(call, x, True), (x, *weights)
    forward, backward = (_named(BIDIRECTIONAL_LSTM_WEIGHTS, f"{way}_", operands) for way in ("forward", "backward"))
    return _both(call, _lstm(call, steps, forward), _lstm(call, steps, backward, reverse=True), True)


#: What keeps a state from call to call though it is given whole windows, and its weights.
WEIGHTS = {
    "UNIDIRECTIONAL_SEQUENCE_RNN": RNN_WEIGHTS,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": LSTM_WEIGHTS,
    "BIDIRECTIONAL_SEQUENCE_RNN": BIDIRECTIONAL_RNN_WEIGHTS,
    "BIDIRECTIONAL_SEQUENCE_LSTM": BIDIRECTIONAL_LSTM_WEIGHTS,
}
