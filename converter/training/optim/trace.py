"""Tracing of optax: an optimizer's `init` gives the slots, its `update` is traced like a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from converter.ir import (
    FLOAT32,
    INT32,
    Builder,
    Graph,
    TensorType,
    Value,
    View,
    described,
    is_described,
    known_result,
    verify,
)
from converter.ir.described import is_uniform
from converter.passes.idioms import with_idioms
from converter.support.errors import UnsupportedError
from converter.support.libraries import is_defined_in
from converter.training.optim.calls import call_update, check_traceable
from converter.training.optim.dots import summed_dots
from converter.training.optim.keys import halved, is_key, joined, program_key, stored_key
from converter.training.optim.named import NamedOptimizer, resolve
from converter.training.optim.parts import TELLING_APART, parts
from converter.training.optim.program import GRADIENT, LOSS, PARAMETER, UPDATE, OptimizerProgram
from jax_frontend import trace_function
from jax_frontend.model import named_leaves


def describe(optimizer: Any) -> str:
    """Return the optimizer in a word or two, for reports and the manifest."""
    if isinstance(optimizer, NamedOptimizer):
        return optimizer.name
    if isinstance(optimizer, str):
        return optimizer
    function = getattr(optimizer, "update", None)
    name = getattr(function, "__qualname__", type(optimizer).__qualname__).split(".")[0]
    return f"optax.{name}" if is_defined_in(function, optax) else name


def trace_optimizer(
    optimizer: Any, parameters: Mapping[str, np.ndarray], views: Mapping[str, View] | None = None
) -> OptimizerProgram:
    """Traces one update for these parameters (name -> initial value, in the model's own layout).

    The optimizer sees the parameters in a tree made of their paths, as the model has them; frozen ones are absent.
    Counters of the state become float32: exact up to 2^24 steps. Keys become keys of the program.

    Args:
        optimizer: a name or an optax transformation.
        parameters: what trains; masks and labels see its rank and its path.
        views: how each is stored, which is how the program takes it. An update that looks at rows and columns can only
            be stored in slices: for other views the program is that of the model's layout, not `layout_invariant`.

    Raises:
        UsageError: see `converter.training.optim.named.resolve`.
        UnsupportedError: the update uses what cannot be compiled.
    """
    check_traceable(optimizer)
    program = _program(optimizer, parameters)
    if not views:
        return program
    laid = {name: views[name].apply(array) for name, array in parameters.items()}
    if program.layout_invariant:
        return program.stored(views, _program(optimizer, laid).graph if program.keys else None)
    if any(step[0] != "slice" for view in views.values() for step in view.steps):
        return program
    return _program(optimizer, laid)


def _program(optimizer: Any, parameters: Mapping[str, np.ndarray]) -> OptimizerProgram:
    tx = resolve(optimizer)
    arrays = tree_of({name: _given(value) for name, value in parameters.items()})
    names = tuple(named_leaves(arrays))
    planned = any(map(is_described, parameters.values()))
    state = _guarded(optimizer, lambda: jax.eval_shape(tx.init, arrays) if planned else _begun(tx, arrays))
    leaves = named_leaves(state)
    for path, leaf in leaves.items():
        kind = np.dtype(leaf.dtype).kind if isinstance(getattr(leaf, "dtype", None), np.dtype) else ""
        if not is_key(leaf) and kind not in (("f",) if np.ndim(leaf) else ("f", "i", "b")):
            raise UnsupportedError(
                f"The optimizer {describe(optimizer)} keeps state of type {getattr(leaf, 'dtype', type(leaf).__name__)}"
                f" ({path}): only float32 tensors, scalars and random keys can be stored. Keep it as float32, which "
                "holds integers up to 2^24, or leave that transformation out.",
                page="optimizers",
            )
    try:
        graph = _trace(optimizer, tx, arrays, state, as_float=True)
    except _KeepsType:
        graph = _trace(optimizer, tx, arrays, state, as_float=False)
    values = _initial(tx, arrays) if planned else leaves.values()
    slots = {f"optimizer/{path}": _stored(value) for path, value in zip(leaves, values, strict=True)}
    finish = _finish(tx, arrays, state, slots) if isinstance(tx, Finishing) else None
    keys = tuple(f"optimizer/{path}" for path, leaf in leaves.items() if is_key(leaf))
    return OptimizerProgram(slots, _named(graph, names, slots), names, describe(optimizer), finish, keys=keys)


def _given(value: np.ndarray) -> Any:
    # Not as an array of JAX, which would be a copy.
    return jax.ShapeDtypeStruct(value.shape, value.dtype) if is_described(value) else np.asarray(value, np.float32)


def _begun(tx: Any, arrays: dict[str, Any]) -> Any:
    """Return the state that an optimizer begins with."""
    try:
        return tx.init(arrays)
    except (AttributeError, TypeError):  # it may use what only arrays of JAX have, as `.at`
        return tx.init(jax.tree.map(jnp.asarray, arrays))


def _initial(tx: Any, arrays: dict[str, Any]) -> list[np.ndarray]:
    """Return the state that an optimizer begins with; described where it is made of the parameters."""
    graph = with_idioms(trace_function(tx.init, [arrays], ["parameter"], known_keys=True))
    known = {value: described(value.shape, value.name) for value in graph.inputs} | graph.constants
    for node in graph.nodes:
        type = node.output.type
        made = known_result(node.op, type, *(known[v] for v in node.inputs))
        known[node.output] = described(type.shape, str(node)) if made is None else made
    return [known[value] for value in graph.outputs.values()]


def tree_of(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path as nested dictionaries, and lists where the keys count 0, 1, 2, ...: what masks and labels expect.

    A flat dictionary if a path goes on after the end of another.
    """
    root: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        node = root
        for folder in folders:
            node = node.setdefault(folder, {})
            if not isinstance(node, dict):
                return dict(leaves)
        if last in node:
            return dict(leaves)
        node[last] = leaf

    def listed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        counts = set(node) == {str(i) for i in range(len(node))}
        return [listed(node[str(i)]) for i in range(len(node))] if counts else {k: listed(v) for k, v in node.items()}

    return {key: listed(node) for key, node in root.items()}


class Finishing(NamedTuple):
    """An optax transformation, and what is done with the weights after its update.

    Attributes:
        init: as of optax.
        update: as of optax.
        finish: from the weights that the update makes, and the state after it, to both as they stay. Its counters are
            float32.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]
    finish: Callable[[Any, Any], tuple[Any, Any]]


def _finish(tx: Finishing, arrays: dict[str, Any], state: Any, slots: Mapping[str, np.ndarray]) -> Graph:
    """Return the graph of what is done after the update."""
    given = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), (arrays, state))
    return _named(
        with_idioms(trace_function(tx.finish, list(given), ["parameter", "optimizer"])),
        tuple(named_leaves(arrays)),
        slots,
        (PARAMETER,),
        PARAMETER,
    )


def _type_for_tracing(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return a leaf of the parameters or the state as the graph takes it."""
    return program_key(leaf) if is_key(leaf) else jax.ShapeDtypeStruct(leaf.shape, jnp.float32)


class _KeepsType(Exception):
    """The update insists on the state's own types."""


def _stored(leaf: Any) -> np.ndarray:
    """Return a leaf of the state as it is stored: float32, never rank 0.

    Of equal numbers, as most begin, one is kept.
    """
    if is_key(leaf):
        return stored_key(leaf)
    array = np.atleast_1d(np.asarray(leaf, np.float32))
    return np.broadcast_to(array.flat[0], array.shape) if is_uniform(array) else array


def _guarded(optimizer: Any, function: Callable[[], Any]) -> Any:
    """Runs optax code on the tree of trained parameters; what it raises becomes an UnsupportedError."""
    try:
        return function()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        tells_apart = any(part.name in TELLING_APART for part in parts(optimizer))
        advice = "Give masks and labels as functions of the parameters" if tells_apart else "Its init raises this"
        raise UnsupportedError(
            f"The optimizer {describe(optimizer)} does not begin with the tree of the trained parameters: {error}. "
            f"{advice}.",
            page="optimizers",
        ) from error


def _trace(optimizer: Any, tx: Any, arrays: dict[str, Any], state: Any, as_float: bool) -> Graph:
    """Return the graph of one update, inputs (gradients, parameters, state, loss), outputs (updates, state).

    With `as_float` the update sees float32 where its state holds integers, which spares the casts; raises _KeepsType
    when it does not stay float32.
    """
    number = jax.ShapeDtypeStruct((), jnp.float32)
    types = jax.tree_util.tree_map(_type_for_tracing, (arrays, arrays, state, number))

    def enter(slot: Any, leaf: Any) -> Any:
        if is_key(leaf):
            return slot
        if leaf.dtype == jnp.bool_:
            return slot != 0
        return slot if as_float else slot.astype(leaf.dtype)

    def leave(slot: Any) -> Any:
        return slot if is_key(slot) else slot.astype(jnp.float32)

    def update(gradients: Any, params: Any, slots: Any, loss: Any) -> Any:
        before = jax.tree_util.tree_map(enter, slots, state)
        updates, after = call_update(tx, gradients, before, params, loss)
        same = jax.tree_util.tree_map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, before, after)
        if not all(jax.tree_util.tree_leaves(same)):
            raise _KeepsType
        return updates, jax.tree_util.tree_map(leave, after)

    try:
        return summed_dots(
            with_idioms(trace_function(update, list(types), ["gradient", "parameter", "optimizer", LOSS]))
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if as_float:
            raise _KeepsType from error
        raise UnsupportedError(
            f"The optimizer {describe(optimizer)} cannot be traced, its update raises: {error}", page="optimizers"
        ) from error
    except _KeepsType:
        if as_float:
            raise
        raise UnsupportedError(
            f"The optimizer {describe(optimizer)} changes the shape or type of its state from step to step.",
            page="optimizers",
        ) from None


def _named(
    graph: Graph,
    names: tuple[str, ...],
    slots: Mapping[str, np.ndarray],
    given: Sequence[str] = (GRADIENT, PARAMETER),
    made: str = UPDATE,
) -> Graph:
    """Return the traced graph after the program's own inputs and outputs: slots are float32 and of rank >= 1.

    The loss comes last, and is an input where it is read.
    """
    b = Builder()
    arguments: list[Value] = []
    values = dict(zip([v.name for v in graph.inputs], graph.inputs, strict=True))
    for prefix in given:
        arguments += [b.input(prefix + name, TensorType(values[prefix + name].shape)) for name in names]
    first = len(given) * len(names)
    state_inputs = graph.inputs[first : first + len(slots)]
    for (name, array), inner in zip(slots.items(), state_inputs, strict=True):
        slot = b.input(name, TensorType(array.shape, FLOAT32))
        arguments.append(joined(b, slot) if inner.dtype == INT32 else b.reshape(slot, inner.shape))
    read = {*graph.consumers(), *graph.outputs.values()}
    for loss in graph.inputs[first + len(slots) :]:
        arguments.append(b.input(LOSS, loss.type) if loss in read else b.constant(0.0))
    results = list(b.inline(graph, arguments).values())
    outputs = dict(zip([made + name for name in names], results[: len(names)], strict=True))
    for (name, array), value in zip(slots.items(), results[len(names) :], strict=True):
        outputs[name] = halved(b, value) if value.dtype == INT32 else b.reshape(value, array.shape)
    b.graph.outputs = outputs
    return verify(b.graph, after="tracing the optimizer")
