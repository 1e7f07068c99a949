"""Losses: per-example loss, weighted by `weight[B]`, as graph ops behind the model's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from converter.errors import UnsupportedError, UsageError, nearest
from converter.ir import FLOAT32, INT32, Builder, Graph, Origin, TensorType, Value, ops

#: Inputs that training adds to the model's own.
RESERVED = {"y", "weight", "learning_rate", "tick"}
#: Emits the per-example loss [B] from the outputs and the targets y.
PerExample = Callable[[Builder, list[Value], Value], Value]


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        name: as it stands in the manifest.
        target: type of y for outputs of given types.
        per_example: emits the loss of each row, shape [B].
        classifies: whether the output holds logits, so that right answers can be counted.
    """

    name: str
    target: Callable[[list[TensorType]], TensorType]
    per_example: PerExample
    classifies: bool = False


def _mean_rows(b: Builder, values: Value) -> Value:
    """The mean over all axes but the first."""
    return b(ops.Mean(tuple(range(1, len(values.shape)))), values) if len(values.shape) > 1 else values


def _sparse_cross_entropy(b: Builder, outputs: list[Value], y: Value) -> Value:
    (logits,) = outputs
    return _mean_rows(b, b(ops.SoftmaxCrossEntropy(), logits, b(ops.OneHot(logits.shape[-1]), y)))


def _cross_entropy(b: Builder, outputs: list[Value], y: Value) -> Value:
    (logits,) = outputs
    return _mean_rows(b, b(ops.SoftmaxCrossEntropy(), logits, y))


def _squared_error(b: Builder, outputs: list[Value], y: Value) -> Value:
    (prediction,) = outputs
    return _mean_rows(b, b(ops.SquaredDifference(), prediction, y))


LOSSES = {
    "sparse_categorical_crossentropy": Loss(
        "sparse_categorical_crossentropy",
        lambda outputs: TensorType(outputs[0].shape[:-1], INT32),
        _sparse_cross_entropy,
        classifies=True,
    ),
    "categorical_crossentropy": Loss(
        "categorical_crossentropy", lambda outputs: outputs[0], _cross_entropy, classifies=True
    ),
    "mse": Loss("mse", lambda outputs: outputs[0], _squared_error),
}


def named_loss(name: str) -> Loss:
    """A loss by name. Raises UsageError for an unknown one."""
    if name not in LOSSES:
        raise UsageError(f"unknown loss {name!r}.{nearest(name, list(LOSSES))} Known: {', '.join(LOSSES)}.")
    return LOSSES[name]


def traced_loss(graph: Graph, name: str) -> Loss:
    """The person's own function, traced: inputs are the model's outputs and then y; one output of shape [B]."""
    *_, y = graph.inputs

    def emit(b: Builder, outputs: list[Value], target: Value) -> Value:
        (result,) = b.inline(graph, [*outputs, target]).values()
        return result

    (result,) = graph.outputs.values()
    if result.shape != y.shape[:1]:
        raise UsageError(
            f"the loss {name} must return one number per example, shape [{y.shape[0] if y.shape else 'batch'}]; "
            f"it returns {list(result.shape)}. Take the mean over the other axes."
        )
    return Loss(name, lambda outputs: y.type, emit)


def attach_loss(graph: Graph, loss: Loss, mean: bool = True) -> Graph:
    """Adds the inputs `y` and `weight` and the outputs `loss` [] (and `correct` [] for classifiers) to a forward graph.

    loss = sum(weight * per-example loss) / sum(weight), without the division unless `mean`.
    correct = sum(weight * share of right answers in the row).

    Raises:
        UnsupportedError: the loss needs one output and the model has several.
    """
    outputs = list(graph.outputs.values())
    if loss.name in LOSSES and len(outputs) != 1:
        raise UnsupportedError(
            f"the loss {loss.name} takes one output and the model has {len(outputs)}: pass a function"
        )
    if loss.classifies and len(outputs[0].shape) < 2:
        raise UsageError(
            f"the loss {loss.name} wants logits [batch, ..., classes]; the output is {list(outputs[0].shape)}"
        )
    if taken := sorted(RESERVED & {v.name for v in graph.inputs}):
        raise UsageError(
            f"the model has an input named {taken[0]!r}, a name that the training step needs for itself "
            f"({', '.join(sorted(RESERVED))}): rename the argument or the keras.Input"
        )
    b = Builder(graph.copy())
    with b.at(Origin("loss")):
        y = b.input("y", loss.target([v.type for v in outputs]))
        weight = b.input("weight", TensorType(y.shape[:1], FLOAT32))
        rows = loss.per_example(b, outputs, y)
        total = b(ops.Sum((0,)), b(ops.Mul(), rows, weight))
        b.graph.outputs["loss"] = b(ops.Div(), total, b(ops.Sum((0,)), weight)) if mean else total
        if loss.classifies:
            right = b(ops.ArgMax(len(outputs[0].shape) - 1), outputs[0])
            answer = y if y.dtype == INT32 else b(ops.ArgMax(len(y.shape) - 1), y)
            hits = _mean_rows(b, b(ops.Cast(FLOAT32), b(ops.Equal(), right, answer)))
            b.graph.outputs["correct"] = b(ops.Sum((0,)), b(ops.Mul(), hits, weight))
    return b.graph
