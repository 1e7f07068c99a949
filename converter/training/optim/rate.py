"""Learning rate: the number that an optimizer was built with, or one that runs in the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isclose, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from converter.ir import Graph, Node, Value, dependents, ops
from converter.support.errors import PocketuneError, UsageError
from converter.training.optim.calls import call_update
from converter.training.optim.named import resolve
from converter.training.optim.notes import climbing
from converter.training.optim.parts import Transformation, parts
from converter.training.optim.program import GRADIENT, UPDATE
from converter.training.optim.running_rate import ScheduledRate, running_rate
from converter.training.optim.trace import describe, trace_optimizer

#: Any optimizer that looks at numbers alone takes this.
_PROBE = {"w": np.array([[0.5, -1.0, 2.0], [-0.25, 1.5, -3.0]], np.float32)}
_NAME = "w"
#: Parts that have rates of their own, of which a factor behind them tells nothing.
_WITH_RATES = ("scale_by_schedule", "inject_hyperparams", "inject_stateful_hyperparams", "scale_by_rprop")
#: It adds what it was given before, each times a number, which may be a rate.
_OPTIMISTIC = "scale_by_optimistic_gradient"


class Rated(NamedTuple):
    """An optimizer, and whose its learning rate is.

    Attributes:
        optimizer: for a learning rate of 1, which the step's input is.
        learning_rate: the number that it was built with; None where its rate runs in the program.
        running: the rate that runs in the program, which the step's input multiplies.
    """

    optimizer: Any
    learning_rate: float | None
    running: ScheduledRate | None


def own_rate(optimizer: Any) -> float | None:
    """Return the constant learning rate that an optimizer was built with; None where it is none, or cannot be told.

    It is the number that the last operations of the update multiply by, as optax' optimizers end, where no other part
    of the optimizer multiplies by a number or has rates of its own.
    """
    found = parts(resolve(optimizer))
    if found and found[0].name == "partition":
        return _of_groups(found[0].closed_over["transforms"].values())
    try:
        program = trace_optimizer(optimizer, _PROBE)
    except PocketuneError:
        return None  # it looks at the tree of the parameters
    state = resolve(optimizer).init({_NAME: jnp.asarray(_PROBE[_NAME])})
    if any(map(_is_partition, jax.tree.leaves(state, is_leaf=_is_partition))):
        return None  # other parameters may have other rates
    made = {value: node for node in program.graph.nodes for value in node.outputs}
    factor, node = 1.0, None
    value: Value | None = program.graph.outputs[UPDATE + _NAME]
    while value is not None and (node := made.get(value)) is not None:
        step, value = _factor(node, program.graph)
        factor *= step
    # In a sum, or behind what clips, another rate may stand.
    bare = node is None or isinstance(node.op, ops.Div)
    return -factor if factor < 0 and _is_all_there_is(-factor, found, bare) else None


def _of_groups(transformations: Iterable[Any]) -> float | None:
    """Return the rate that all groups of parameters have which move."""
    moving = [each for each in transformations if not any(part.name == "set_to_zero" for part in parts(each))]
    rates = {own_rate(each) for each in moving}
    return rates.pop() if len(rates) == 1 else None


def _is_partition(state: Any) -> bool:
    return isinstance(state, optax.transforms.PartitionState)


def _factor(node: Node, graph: Graph) -> tuple[float, Value | None]:
    """Return the number that a node multiplies by, and what it multiplies; none where it does something else."""
    if isinstance(node.op, ops.Neg | ops.Reshape):
        return (-1.0 if isinstance(node.op, ops.Neg) else 1.0), node.inputs[0]
    if not isinstance(node.op, ops.Mul):
        return 1.0, None
    for number in node.inputs:
        if number in graph.constants and graph.constants[number].size == 1:
            return float(graph.constants[number].reshape(())), next(v for v in node.inputs if v is not number)
    # A size of the weight, as adafactor's, or of the update: what it multiplies may hold the rate.
    large = [v for v in node.inputs if v.type.size > 1]
    alone = len(large) == 1 and _sees_the_gradient(large[0], graph)
    return 1.0, large[0] if alone else None


def _sees_the_gradient(value: Value, graph: Graph) -> bool:
    return value in dependents(graph, [v for v in graph.inputs if v.name.startswith(GRADIENT)])


def _is_all_there_is(rate: float, found: list[Transformation], bare: bool) -> bool:
    """Return whether nothing but the last factors has to do with a rate; `bare`: no sum is after them."""
    if any(part.name in _WITH_RATES or _is_scaled(part) for part in found):
        return False
    numbers = [part.closed_over["step_size"] for part in found if part.name == "scale" and part.is_of_optax]
    if not numbers:
        return rate != 1  # of one's own: a mere minus may stand behind a rate
    one_rate = len(numbers) == 1 or bare  # one of several may be 1, of which nothing is seen
    return one_rate and isclose(abs(prod(float(number) for number in numbers)), rate, rel_tol=1e-6)


def _is_scaled(part: Transformation) -> bool:
    return part.name == _OPTIMISTIC and part.closed_over.get("alpha", 1) != 1


def check_descends(optimizer: Any) -> None:
    """Raises UsageError for an update that goes up the gradient, as `optax.scale_by_adam()` alone does."""
    if climbing(resolve(optimizer), {_NAME: _PROBE[_NAME].shape}):
        raise UsageError(
            f"the optimizer {describe(optimizer)} goes up the gradient: its updates lack the minus of a learning rate. "
            "Chain it: optax.chain(..., optax.scale_by_learning_rate(1.0))",
            page="optimizers",
        )


def rated(optimizer: Any, shapes: Mapping[str, tuple[int, ...]]) -> Rated:
    """Return the optimizer as it would be with a learning rate of 1, and the rate that it has.

    The step's input `learning_rate` multiplies the update, so that it is the learning rate, whoever built it. A rate
    that changes, that differs between parameters or that cannot be told stays: the input multiplies it. The state is
    the optimizer's own.

    Args:
        optimizer: an optax.GradientTransformation.
        shapes: of the model's parameters, by name.
    """
    rate = own_rate(optimizer)
    if rate is None:
        return Rated(optimizer, None, running_rate(resolve(optimizer), shapes))
    if rate == 1:
        return Rated(optimizer, rate, None)

    def update(gradients: Any, state: Any, params: Any = None, *, value: Any, grad: Any) -> tuple[Any, Any]:
        updates, after = call_update(optimizer, gradients, state, params, value)
        return jax.tree.map(lambda u: u / rate, updates), after

    return Rated(optax.GradientTransformationExtraArgs(optimizer.init, update), rate, None)
