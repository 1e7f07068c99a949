"""Training step graphs: forward, pruned backward and update, or accumulation; weights without a gradient are refused.

A step on micro-batches runs `accumulate` on a few rows at a time, which adds their gradients to accumulators, and then
`apply` once. Activations then cost the memory of a micro-batch, and stay in the processor's caches.

A split step gives its gradients away by `gradients`, which an accelerator may run in float16, and takes them back in
`apply`, which updates in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from converter.ir import FLOAT32, Builder, Graph, Origin, Parameter, TensorType, Value, ops
from converter.ir.extent import Extent
from converter.passes import eliminate_dead_code, merge_common_subexpressions, simplify, simplify_loops
from converter.passes.autodiff import differentiate, is_linear
from converter.passes.layout import assign_layouts
from converter.program.manifest import GRADIENT, LOSS_OF_STEP, ROW_LOSSES
from converter.support.errors import NumericError
from converter.training.dropout import with_masks
from converter.training.losses import JointLoss, Loss, attach_loss
from converter.training.optim import OptimizerProgram, apply_updates, layer_of
from converter.training.row_clipping import RowClipping, check_rows_alone, clipped_gradients


def _as_it_is(graph: Graph) -> Graph:
    return graph


@dataclass(frozen=True)
class StepForm:
    """How a step is cut into signatures.

    Attributes:
        signature: the one that takes the rows; all but `train` have `apply` beside them.
        in_parts: whether it takes a part of a step's rows at a time.
        scale: what the gradients of a split step are multiplied by on their way.
        trained: what a forward graph with its loss is while it trains.
        carried: further state of such a graph.
        averaged: what makes moving averages of the statistics of a batch, which are their updates until then.
        rate_first: whether the learning rate may multiply all cotangents, where float32 holds them.
        row_norm: the largest norm of a row's gradient; None: any.
        row_losses: whether it gives the loss of each row beside their mean.
    """

    signature: Literal["train", "accumulate", "gradients"] = "train"
    in_parts: bool = False
    scale: float = 1.0
    trained: Callable[[Graph], Graph] = _as_it_is
    carried: Mapping[Value, Parameter] = field(default_factory=dict)
    averaged: Callable[[Graph], Graph] = _as_it_is
    rate_first: bool = False
    row_norm: float | None = None
    row_losses: bool = False

    def graphs(self, selected: Graph, loss: Loss | JointLoss, rule: OptimizerProgram) -> dict[str, Graph]:
        """Return the step on the model's inputs, by signature."""
        step: dict[str, Graph] = {self.signature: self._on_rows(selected, loss, rule)}
        if self.signature == "train":
            return step
        applied = application(selected, rule, self.scale, self.averaged)
        applied.parameters |= self.carried
        return {**step, "apply": applied}

    def graphs_on_features(self, rest: Graph, loss: Loss | JointLoss, rule: OptimizerProgram) -> dict[str, Graph]:
        """Return what the step on the features of a frozen prefix needs besides, by signature."""
        return {f"{self.signature}_features": self._on_rows(rest, loss, rule)}

    def _on_rows(self, selected: Graph, loss: Loss | JointLoss, rule: OptimizerProgram) -> Graph:
        clipping = None if self.row_norm is None else RowClipping(self.row_norm, self.signature != "accumulate")
        if self.signature == "train":
            first = self.rate_first and clipping is None
            return whole_step(selected, loss, rule, self.trained, self.averaged, first, clipping, self.row_losses)
        if self.signature == "accumulate":
            return accumulation(selected, loss, self.trained, rule.reads_loss, clipping, self.row_losses)
        return gradients_alone(
            selected, loss, self.in_parts, self.scale, self.trained, rule.reads_loss, clipping, self.row_losses
        )


def whole_step(
    selected: Graph,
    loss: Loss | JointLoss,
    rule: OptimizerProgram,
    trained: Callable[[Graph], Graph] = _as_it_is,
    averaged: Callable[[Graph], Graph] = _as_it_is,
    rate_first: bool = False,
    clipping: RowClipping | None = None,
    row_losses: bool = False,
) -> Graph:
    """`train`: the loss is the mean of the rows by weight, every parameter and slot is updated. Output: `loss`.

    With `row_losses` there is an output of that name, as of `attach_loss`, in each of the three forms.

    With `rate_first`, plain descent multiplies the loss' cotangent by the learning rate, and no gradient.
    """
    b = Builder(trained(attach_loss(selected, loss, row_losses=row_losses)))
    learning_rate = b.input("learning_rate", TensorType((1,), FLOAT32))
    if rate_first and rule.scales_gradients:
        rate = b.reshape(learning_rate, ())
        backward, gradients = _gradients(b.graph.copy(), selected, rate)
        if is_linear(backward, rate, gradients.values()):
            return _tidied(averaged(apply_updates(backward, gradients, rule, None)))
    backward, gradients = _gradients(b.graph, selected, clipping=clipping)
    made = backward.outputs["loss"]
    b = Builder(apply_updates(backward, gradients, rule, learning_rate, made if rule.reads_loss else None))
    if rule.reads_loss:
        kept, parameter = _loss_state()
        b.graph.parameters[kept] = parameter
        b.graph.updates[kept] = b.reshape(made, kept.shape)
    return _tidied(averaged(b.graph))


def accumulation(
    selected: Graph,
    loss: Loss | JointLoss,
    trained: Callable[[Graph], Graph] = _as_it_is,
    keeps_loss: bool = False,
    clipping: RowClipping | None = None,
    row_losses: bool = False,
) -> Graph:
    """`accumulate`: adds the gradient of the sum of `weight` times the row's loss, which is the output `loss`.

    Weights that sum to one over all rows of a step make both the step's: the mean is taken by who calls. With
    `keeps_loss` the loss is added up for the update, too.
    """
    summed = trained(attach_loss(selected, loss, mean=False, row_losses=row_losses))
    backward, gradients = _gradients(summed, selected, clipping=clipping)
    b = Builder(backward)
    for parameter, accumulator in _with_accumulators(b.graph, gradients).items():
        with b.at(Origin(layer_of(selected, parameter), "", "update")):
            b.graph.updates[accumulator] = b(ops.Add(), accumulator, gradients[parameter])
    if keeps_loss:
        kept = _with_accumulator(b.graph, *_loss_state())
        b.graph.updates[kept] = b(ops.Add(), kept, b.reshape(b.graph.outputs["loss"], kept.shape))
    return _tidied(b.graph)


def gradients_alone(
    selected: Graph,
    loss: Loss | JointLoss,
    in_parts: bool = False,
    scale: float = 1.0,
    trained: Callable[[Graph], Graph] = _as_it_is,
    keeps_loss: bool = False,
    clipping: RowClipping | None = None,
    row_losses: bool = False,
) -> Graph:
    """`gradients`: the output `loss` is the mean of the rows by weight; accumulators get its gradient times `scale`.

    With `keeps_loss` one gets the loss as it is, which the update reads.

    Those of moving averages get the statistics of the batch: an average moves too little for an engine that rounds.
    Of the parts of a step, each with its share of the weight, they add up to the step's: that is left to who calls.
    """
    with_loss = trained(attach_loss(selected, loss, in_parts=in_parts, row_losses=row_losses))
    backward, gradients = _gradients(with_loss, selected, scale, clipping)
    graph = backward.copy()
    accumulators = _with_accumulators(graph, gradients)
    graph.updates |= {accumulator: gradients[parameter] for parameter, accumulator in accumulators.items()}
    for average, accumulator in _with_accumulators(graph, _averages(graph)).items():
        graph.updates[accumulator] = graph.updates.pop(average)
    if keeps_loss:
        kept = _with_accumulator(graph, *_loss_state())
        graph.updates[kept] = Builder(graph).reshape(graph.outputs["loss"], kept.shape)
    return _tidied(graph)


def application(
    selected: Graph, rule: OptimizerProgram, scale: float = 1.0, averaged: Callable[[Graph], Graph] = _as_it_is
) -> Graph:
    """`apply`: updates every parameter and slot from the accumulators, which hold `scale` times the gradient.

    To clear them is left to who holds them: the program's variables (`converter.backend.lowering.state`), or the caller
    (`converter.runtime.interpreters.memory`).
    """
    graph = Graph(parameters=dict(selected.parameters))
    gradients = _with_accumulators(graph, selected.weights())
    graph.updates |= _with_accumulators(graph, _averages(selected))
    b = Builder(graph)
    learning_rate = b.input("learning_rate", TensorType((1,), FLOAT32))
    if scale != 1:
        for parameter, accumulator in gradients.items():
            with b.at(Origin(layer_of(selected, parameter), "", "update")):
                gradients[parameter] = b(ops.Mul(), accumulator, 1 / scale)
    loss: Value | None = None
    if rule.reads_loss:
        state, kept = _loss_state()
        graph.parameters[state] = kept
        graph.updates[state] = _with_accumulator(graph, state, kept)
        loss = b.reshape(graph.updates[state], ())
    return _tidied(averaged(apply_updates(b.graph, gradients, rule, learning_rate, loss)))


def _averages(graph: Graph) -> list[Value]:
    """Return the moving averages that a step moves."""
    return [v for v, p in graph.parameters.items() if p.kind == "statistic"]


def _gradients(
    with_loss: Graph, selected: Graph, scale: float | Value = 1.0, clipping: RowClipping | None = None
) -> tuple[Graph, dict[Value, Value]]:
    """Forward and backward pass with the outputs of losses alone, and `scale` times the gradient of every parameter.

    Raises:
        NumericError: the loss does not depend on some of them.
        UsageError: rows are to be clipped, and their gradients' norms are not known.
    """
    if clipping is not None:
        check_rows_alone(with_loss)
    kept = {name: value for name, value in with_loss.outputs.items() if name in ("loss", ROW_LOSSES)}
    with_loss.outputs = kept | ({"scale": scale} if isinstance(scale, Value) else {})
    # Of a loss of pictures the targets are moved, not the pictures there and their cotangents back.
    forward = assign_layouts(eliminate_dead_code(with_loss), matrices=True)
    loss, scale = forward.outputs["loss"], forward.outputs.get("scale", scale)
    given = {name: forward.outputs[name] for name in kept}
    # A session refuses a step in which no row has a weight, so their sum is no pole.
    extents = {value: Extent(low=2.0**-126) for value in forward.inputs if value.name == "weight"}
    if clipping is None:
        backward, gradients = differentiate(forward, loss, selected.weights(), scale, extents)
    else:
        names = {value: parameter.name for value, parameter in selected.weights().items()}
        backward, gradients = clipped_gradients(forward, loss, names, clipping, scale, extents)
    backward.outputs = given
    silent = [p.name for v, p in selected.weights().items() if v not in gradients]
    if silent:
        rules = ", ".join(f"{name!r}: 0" for name in silent)
        raise NumericError(
            f"these parameters get no gradient, the loss does not depend on them: {', '.join(silent)}. Freeze them by "
            f'later update rules: update={{"*": 1, {rules}}}, where everything else is to train.'
        )
    return backward, gradients


def _with_accumulators(graph: Graph, parameters: Iterable[Value]) -> dict[Value, Value]:
    """Adds an accumulator for each of the parameters, as each is stored; returns it by parameter."""
    return {value: _with_accumulator(graph, value, graph.parameters[value]) for value in parameters}


def _with_accumulator(graph: Graph, value: Value, parameter: Parameter) -> Value:
    """Adds the accumulator of a parameter; returns it."""
    accumulator = Value(value.type, GRADIENT + parameter.name)
    zeros = np.broadcast_to(np.zeros((), np.float32), value.shape)
    graph.parameters[accumulator] = Parameter(accumulator.name, zeros, kind="accumulator")
    return accumulator


def _loss_state() -> tuple[Value, Parameter]:
    """Return the loss of the last step, [1]."""
    return Value(TensorType((1,)), LOSS_OF_STEP), Parameter(LOSS_OF_STEP, np.zeros(1, np.float32), kind="loss")


def _tidied(graph: Graph) -> Graph:
    return merge_common_subexpressions(simplify(simplify_loops(eliminate_dead_code(graph))))


def with_dropout(step: StepForm, counter: Value, parameter: Parameter) -> StepForm:
    """Return the same step with random masks; it counts its calls."""
    return replace(
        step,
        trained=lambda graph: with_masks(step.trained(graph), counter, parameter),
        carried={**step.carried, counter: parameter},
    )
