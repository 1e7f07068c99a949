"""Whose learning rate it is: an optimizer may bring one of its own, and the step's input multiplies that."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from converter.errors import PocketuneError, UsageError
from converter.ir import Value, ops
from converter.optim.program import UPDATE
from converter.optim.trace import describe, resolve, trace_optimizer

#: Any optimizer that looks at numbers alone takes this.
_PROBE = {"w": np.array([[0.5, -1.0, 2.0], [-0.25, 1.5, -3.0]], np.float32)}
_NAME = "w"


class OptimizerWarning(UserWarning):
    """An optimizer has a learning rate of its own."""


def own_rate(optimizer: Any) -> float:
    """The constant learning rate that an optimizer was built with; 1 where it has none, or one that changes.

    It is the number that the last operations of the update multiply by, as optax' optimizers end.
    """
    try:
        program = trace_optimizer(optimizer, _PROBE)
    except PocketuneError:
        return 1.0  # it looks at the tree of the parameters
    made = {value: node for node in program.graph.nodes for value in node.outputs}
    constants, factor = program.graph.constants, 1.0
    value: Value | None = program.graph.outputs[UPDATE + _NAME]
    while value is not None and (node := made.get(value)) is not None:
        value = None
        if isinstance(node.op, ops.Neg | ops.Reshape):
            value = node.inputs[0]
        elif isinstance(node.op, ops.Mul):
            numbers = [v for v in node.inputs if v in constants and constants[v].size == 1]
            if numbers:
                factor *= float(constants[numbers[0]].reshape(()))
                value = next(v for v in node.inputs if v is not numbers[0])
    return abs(factor)


def check_descends(optimizer: Any) -> None:
    """Raises UsageError for an update that goes up the gradient, as `optax.scale_by_adam()` alone does."""
    tx, parameters = resolve(optimizer), {_NAME: jnp.asarray(_PROBE[_NAME])}
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


def warn_of_own_rate(optimizer: Any, stacklevel: int = 2) -> None:
    """Warns of an optimizer with a rate of its own, which is easily applied twice."""
    rate = own_rate(optimizer)
    if abs(rate - 1) < 1e-6:
        return
    warnings.warn(
        f"{describe(optimizer)} was built with a learning rate of {rate:g}, and the step's input `learning_rate` "
        f"multiplies it: train with learning_rate=1.0 for {rate:g}, or build it with a learning rate of 1 to give the "
        "rate while training",
        OptimizerWarning,
        stacklevel=stacklevel + 1,
    )
