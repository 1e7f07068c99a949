"""Recurrent layers: LSTM, GRU and simple ones, as loops over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from converter.frontends.torch.registry import Call, NotImportable, Rules

rule = Rules()

_PACKED = NotImportable(
    "a packed sequence", "give the padded batch itself, [rows, time, features], and mask what lies behind the ends"
)
#: One step: (projected input, state, recurrent weights, recurrent bias) -> state. The first of it is the output.
Step = Callable[[Any, tuple[Any, ...], Any, Any], tuple[Any, ...]]


def _product(x: Any, w: Any, bias: Any = None) -> Any:
    y = lax.dot_general(x, w, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else y + bias


def _lstm_step(gates: Any, state: tuple[Any, ...], w: Any, bias: Any, projection: Any = None) -> tuple[Any, ...]:
    h, c = state
    i, f, g, o = jnp.split(gates + _product(h, w, bias), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h if projection is None else _product(h, projection), c)


def _gru_step(gates: Any, state: tuple[Any, ...], w: Any, bias: Any) -> tuple[Any, ...]:
    (h,) = state
    xr, xz, xn = jnp.split(gates, 3, -1)
    hr, hz, hn = jnp.split(_product(h, w, bias), 3, -1)
    z = jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * h,)


def _simple_step(activation: Callable[[Any], Any]) -> Step:
    return lambda gates, state, w, bias: (activation(gates + _product(state[0], w, bias)),)


def _run(step: Step, x: Any, state: tuple[Any, ...], weights: Sequence[Any], backward: bool) -> tuple[Any, Any]:
    """One direction of one layer over x [time, rows, features]: the outputs of all steps, and the last state."""
    w, u, *biases = weights
    bias, inner = biases if biases else (None, None)

    def body(carried: tuple[Any, ...], gates: Any) -> tuple[Any, Any]:
        after = step(gates, carried, u, inner)
        return after, after[0]

    last, outputs = lax.scan(body, state, _product(x, w, bias), reverse=backward)
    return outputs, last


def _layers(
    step: Callable[[Any], Step],
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    per_direction: int,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, list[Any]]:
    """All layers of a recurrent module; states are [layers * directions, rows, features]."""
    alone = x.ndim == 2
    if alone:
        x, states = x[:, None], [s[:, None] for s in states]
    elif batch_first:
        x = jnp.swapaxes(x, 0, 1)
    directions, finals = 1 + bidirectional, []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            own = list(weights[at * per_direction : (at + 1) * per_direction])
            y, last = _run(step(own), x, tuple(s[at] for s in states), own, bool(direction))
            outputs.append(y)
            finals.append(last)
        x = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, -1)
    ends = [jnp.stack(parts) for parts in zip(*finals, strict=True)]
    if alone:
        return x[:, 0], [e[:, 0] for e in ends]
    return (jnp.swapaxes(x, 0, 1) if batch_first else x), ends


def _check(call: Call, second: Any, layers: int, dropout: float) -> None:
    if not isinstance(second, int | bool) and not isinstance(second, Sequence):
        raise _PACKED
    if dropout and layers > 1:
        call.findings.note(
            call.layer, "left out", f"dropout between its layers (p={dropout:g}): the program computes as in inference"
        )


@rule("lstm")
def lstm(
    call: Call,
    x: Any,
    states: Sequence[Any],
    weights: Any,
    has_biases: Any,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Any:
    if not isinstance(states, list | tuple):
        raise _PACKED
    _check(call, has_biases, layers, dropout)
    per_direction = len(weights) // (layers * (1 + bidirectional))
    projects = per_direction in (3, 5)

    def step(own: list[Any]) -> Step:
        projection = own.pop() if projects else None
        return lambda gates, state, w, bias: _lstm_step(gates, state, w, bias, projection)

    y, (h, c) = _layers(step, x, states, weights, per_direction, layers, bidirectional, batch_first)
    return (y, h, c)


def _other(call: Call, step: Step, x: Any, state: Any, weights: Any, has_biases: Any, *rest: Any) -> Any:
    if not isinstance(weights, list | tuple):
        raise _PACKED
    layers, dropout, _, bidirectional, batch_first = (*rest, False)[:5]
    _check(call, has_biases, layers, dropout)
    count = len(weights) // (layers * (1 + bidirectional))
    y, (h,) = _layers(lambda own: step, x, [state], weights, count, layers, bidirectional, batch_first)
    return (y, h)


@rule("gru")
def gru(call: Call, *operands: Any) -> Any:
    return _other(call, _gru_step, *operands)


@rule("rnn_tanh")
def rnn_tanh(call: Call, *operands: Any) -> Any:
    return _other(call, _simple_step(jnp.tanh), *operands)


@rule("rnn_relu")
def rnn_relu(call: Call, *operands: Any) -> Any:
    return _other(call, _simple_step(jax.nn.relu), *operands)


@rule("lstm_cell")
def lstm_cell(call: Call, x: Any, state: Sequence[Any], w: Any, u: Any, bias: Any = None, inner: Any = None) -> Any:
    return _lstm_step(_product(x, w, bias), tuple(state), u, inner)


@rule("gru_cell")
def gru_cell(call: Call, x: Any, h: Any, w: Any, u: Any, bias: Any = None, inner: Any = None) -> Any:
    return _gru_step(_product(x, w, bias), (h,), u, inner)[0]


@rule("rnn_tanh_cell")
def rnn_tanh_cell(call: Call, x: Any, h: Any, w: Any, u: Any, bias: Any = None, inner: Any = None) -> Any:
    return jnp.tanh(_product(x, w, bias) + _product(h, u, inner))


@rule("rnn_relu_cell")
def rnn_relu_cell(call: Call, x: Any, h: Any, w: Any, u: Any, bias: Any = None, inner: Any = None) -> Any:
    return jax.nn.relu(_product(x, w, bias) + _product(h, u, inner))
