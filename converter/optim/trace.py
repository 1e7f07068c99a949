"""optax -> graph: an optimizer's `init` gives the slots, its `update` is traced like a model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from converter.errors import UnsupportedError, UsageError
from converter.ir import FLOAT32, Builder, Graph, TensorType, Value, verify
from converter.optim.program import GRADIENT, PARAMETER, UPDATE, OptimizerProgram
from jax_frontend import trace_function
from jax_frontend.model import named_leaves

#: The optimizers that have a name, with learning rate 1: the input `learning_rate` of the step multiplies the update,
#: so that it is the learning rate. Everything else is optax' default (adamw decays weights by 1e-4).
NAMED: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1.0),
    "momentum": lambda: optax.sgd(1.0, momentum=0.9),
    "adam": lambda: optax.adam(1.0),
    "adamw": lambda: optax.adamw(1.0),
    "rmsprop": lambda: optax.rmsprop(1.0),
    "adagrad": lambda: optax.adagrad(1.0),
    "lion": lambda: optax.lion(1.0),
}


def resolve(optimizer: Any) -> optax.GradientTransformation:
    """An optax transformation from a name or a transformation.

    Raises:
        UsageError: no such name (the nearest are listed), or not an optax transformation.
    """
    if isinstance(optimizer, str):
        if optimizer not in NAMED:
            near = difflib.get_close_matches(optimizer.lower(), NAMED, n=3, cutoff=0.4) or list(NAMED)
            raise UsageError(f"There is no optimizer named {optimizer!r}. Did you mean {', '.join(near)}?")
        return NAMED[optimizer]()
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise UsageError(
            f"An optimizer is one of the names {', '.join(NAMED)} or an optax.GradientTransformation, not {optimizer!r}"
        )
    return optimizer


def describe(optimizer: Any) -> str:
    """The optimizer in a word or two, for reports and the manifest."""
    if isinstance(optimizer, str):
        return optimizer
    function = getattr(optimizer, "update", None)
    name = getattr(function, "__qualname__", type(optimizer).__qualname__).split(".")[0]
    return f"optax.{name}" if getattr(function, "__module__", "").startswith("optax") else name


def trace_optimizer(optimizer: Any, parameters: Mapping[str, np.ndarray]) -> OptimizerProgram:
    """Traces one update for these parameters (name -> initial value, as stored).

    Counters of the state become float32: exact up to 2^24 steps.

    Raises:
        UsageError: see `resolve`.
        UnsupportedError: the update uses what cannot be compiled.
    """
    tx = resolve(optimizer)
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in parameters.items()}
    state = _guarded(optimizer, lambda: tx.init(arrays))
    leaves = named_leaves(state)
    for path, leaf in leaves.items():
        kind = np.dtype(leaf.dtype).kind if isinstance(getattr(leaf, "dtype", None), np.dtype) else ""
        if np.ndim(leaf) and kind not in "f" or kind not in ("f", "i", "b"):
            raise UnsupportedError(
                f"The optimizer {describe(optimizer)} keeps state of type {getattr(leaf, 'dtype', type(leaf).__name__)}"
                f" ({path}): only float32 tensors and scalars can be stored. Leave that transformation out."
            )
    try:
        graph = _trace(optimizer, tx, arrays, state, as_float=True)
    except _KeepsType:
        graph = _trace(optimizer, tx, arrays, state, as_float=False)
    slots = {f"optimizer/{path}": _stored(leaf) for path, leaf in leaves.items()}
    return OptimizerProgram(slots, _named(graph, tuple(arrays), slots), tuple(arrays), describe(optimizer))


class _KeepsType(Exception):
    """The update insists on the state's own types."""


def _stored(leaf: Any) -> np.ndarray:
    """A leaf of the state as it is stored: float32, never rank 0."""
    return np.atleast_1d(np.asarray(leaf, np.float32))


def _guarded(optimizer: Any, function: Callable[[], Any]) -> Any:
    """Runs optax code on the flat dictionary of trained parameters; what it raises becomes an UnsupportedError."""
    try:
        return function()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnsupportedError(
            f"The optimizer {describe(optimizer)} does not work on a plain dictionary of the trained parameters: {error}"
        ) from error


def _trace(optimizer: Any, tx: Any, arrays: dict[str, jax.Array], state: Any, as_float: bool) -> Graph:
    """The graph of one update, inputs (gradients, parameters, state), outputs (updates, state).

    With `as_float` the update sees float32 where its state holds integers, which spares the casts; raises _KeepsType
    when it does not stay float32.
    """
    given = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), (arrays, arrays, state))

    def enter(slot: Any, leaf: Any) -> Any:
        if leaf.dtype == jnp.bool_:
            return slot != 0
        return slot if as_float else slot.astype(leaf.dtype)

    def update(gradients: Any, params: Any, slots: Any) -> Any:
        before = jax.tree_util.tree_map(enter, slots, state)
        updates, after = tx.update(gradients, before, params)
        same = jax.tree_util.tree_map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, before, after)
        if not all(jax.tree_util.tree_leaves(same)):
            raise _KeepsType
        return updates, jax.tree_util.tree_map(lambda a: a.astype(jnp.float32), after)

    try:
        return trace_function(update, list(given), ["gradient", "parameter", "optimizer"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if as_float:
            raise _KeepsType from error
        raise UnsupportedError(f"The optimizer {describe(optimizer)} cannot be traced: {error}") from error
    except _KeepsType:
        if as_float:
            raise
        raise UnsupportedError(
            f"The optimizer {describe(optimizer)} changes the shape or type of its state from step to step."
        ) from None


def _named(graph: Graph, names: tuple[str, ...], slots: Mapping[str, np.ndarray]) -> Graph:
    """The traced graph behind the program's own inputs and outputs: slots are float32 and of rank >= 1."""
    b = Builder()
    ordered = sorted(names)  # trees of dictionaries flatten in the order of their sorted keys
    arguments: list[Value] = []
    values = dict(zip([v.name for v in graph.inputs], graph.inputs, strict=True))
    for prefix in (GRADIENT, PARAMETER):
        arguments += [b.input(prefix + name, TensorType(values[prefix + name].shape)) for name in ordered]
    state_inputs = graph.inputs[2 * len(ordered) :]
    for (name, array), inner in zip(slots.items(), state_inputs, strict=True):
        arguments.append(b.reshape(b.input(name, TensorType(array.shape, FLOAT32)), inner.shape))
    results = list(b.inline(graph, arguments).values())
    outputs = dict(zip([UPDATE + name for name in ordered], results[: len(ordered)], strict=True))
    for (name, array), value in zip(slots.items(), results[len(ordered) :], strict=True):
        outputs[name] = b.reshape(value, array.shape)
    b.graph.outputs = outputs
    return verify(b.graph, after="tracing the optimizer")
