"""Whose learning rate it is: an optimizer may bring one of its own, which the step's input then replaces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from converter.errors import PocketuneError, UsageError
from converter.ir import Graph, Node, Value, dependents, ops
from converter.optim.program import GRADIENT, UPDATE
from converter.optim.trace import describe, resolve, trace_optimizer

#: Any optimizer that looks at numbers alone takes this.
_PROBE = {"w": np.array([[0.5, -1.0, 2.0], [-0.25, 1.5, -3.0]], np.float32)}
_NAME = "w"


def own_rate(optimizer: Any) -> float | None:
    """The constant learning rate that an optimizer was built with; None where it is none, or cannot be told.

    It is the number that the last operations of the update multiply by, as optax' optimizers end.
    """
    try:
        program = trace_optimizer(optimizer, _PROBE)
    except PocketuneError:
        return None  # it looks at the tree of the parameters
    state = resolve(optimizer).init({_NAME: jnp.asarray(_PROBE[_NAME])})
    if any(map(_has_rates, jax.tree.leaves(state, is_leaf=_has_rates))):
        return None
    made = {value: node for node in program.graph.nodes for value in node.outputs}
    constants, factor = program.graph.constants, 1.0
    value: Value | None = program.graph.outputs[UPDATE + _NAME]
    while value is not None and (node := made.get(value)) is not None:
        if abs(factor) == 1 and _scales_itself(node, program.graph):
            return None
        value = None
        if isinstance(node.op, ops.Neg | ops.Reshape):
            factor = -factor if isinstance(node.op, ops.Neg) else factor
            value = node.inputs[0]
        elif isinstance(node.op, ops.Mul):
            numbers = [v for v in node.inputs if v in constants and constants[v].size == 1]
            if numbers:
                factor *= float(constants[numbers[0]].reshape(()))
                value = next(v for v in node.inputs if v is not numbers[0])
    return -factor if factor < 0 else None


def _has_rates(state: Any) -> bool:
    """Whether rates are in a state: of several optimizers, each for a group of parameters, or of each weight."""
    return isinstance(state, optax.transforms.PartitionState | optax.ScaleByRpropState)


def _scales_itself(node: Node, graph: Graph) -> bool:
    """Whether a product is with a computed number that not only gradients make, as adafactor's size of the weight."""
    own = dependents(graph, [v for v in graph.inputs if not v.name.startswith(GRADIENT)])
    return isinstance(node.op, ops.Mul) and any(v.type.size == 1 and v in own for v in node.inputs)


def check_descends(optimizer: Any) -> None:
    """Raises UsageError for an update that goes up the gradient, as `optax.scale_by_adam()` alone does."""
    tx, parameters = resolve(optimizer), {_NAME: jnp.abs(jnp.asarray(_PROBE[_NAME]))}  # some keep weights positive
    gradients = {_NAME: jnp.asarray(_PROBE[_NAME][::-1] * 0.1)}
    try:
        updates, _ = tx.update(gradients, tx.init(parameters), parameters)
        uphill = float(jnp.vdot(updates[_NAME], gradients[_NAME])) > 0
    except Exception:  # it looks at the tree of the parameters, or keeps what cannot be traced: said elsewhere
        return
    if uphill:
        raise UsageError(
            f"the optimizer {describe(optimizer)} goes up the gradient: its updates lack the minus of a learning rate. "
            "Chain it: optax.chain(..., optax.scale_by_learning_rate(1.0))"
        )


def at_rate_one(optimizer: Any) -> tuple[Any, float | None]:
    """The optimizer as it would be with a learning rate of 1, and the rate to train it with where none is given.

    The step's input `learning_rate` multiplies the update, so that it is the learning rate, whoever built it. One that
    was built with a rate of 1 has none of its own: None. A rate that changes, that differs between parameters or that
    cannot be told stays: the input multiplies it, and 1 is as it was built. The state is the optimizer's own.
    """
    rate = own_rate(optimizer)
    if rate is None:
        return optimizer, 1.0
    if rate == 1:
        return optimizer, None

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, after = optimizer.update(gradients, state, params)
        return jax.tree.map(lambda u: u / rate, updates), after

    return optax.GradientTransformation(optimizer.init, update), rate
