"""Losses: per-example loss, weighted by `weight[B]`, as graph ops behind the model's output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from converter import row_losses
from converter.errors import UnsupportedError, UsageError, nearest
from converter.ir import FLOAT32, INT32, Builder, Graph, Origin, TensorType, Value, ops
from converter.links import Link, folded_link
from converter.notes import Note
from converter.row_losses import RowLoss, mean_rows

#: Inputs that training adds to the model's own.
RESERVED = {"y", "weight", "learning_rate", "tick"}
#: Emits the per-example loss [B] from the outputs and the targets y.
PerExample = Callable[[Builder, list[Value], Value], Value]


@dataclass(frozen=True)
class Penalty:
    """What a regularizer adds to the loss: l1 * sum(|w|) + l2 * sum(w^2)."""

    l1: float = 0.0
    l2: float = 0.0

    def emit(self, b: Builder, weight: Value) -> Value:
        """The penalty of a weight, []."""
        axes = tuple(range(len(weight.shape)))
        terms = []
        if self.l1:
            terms.append(b(ops.Mul(), b(ops.Sum(axes), b(ops.Abs(), weight)), self.l1))
        if self.l2:
            terms.append(b(ops.Mul(), b(ops.Sum(axes), b(ops.Mul(), weight, weight)), self.l2))
        return terms[0] if len(terms) == 1 else b(ops.Add(), *terms)


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        name: as it stands in the manifest.
        target: type of y for outputs of given types.
        per_example: emits the loss of each row, shape [B].
        link: what the loss applies to the output itself, which holds logits: right answers can be counted then. Of a
            model that ends in it, the loss reads what stands before.
        needs_link: the output is said to hold probabilities, so the model has to end in the link.
        penalties: regularizers by the name of the parameter; those of frozen parameters are left out.
    """

    name: str
    target: Callable[[list[TensorType]], TensorType]
    per_example: PerExample
    link: Link | None = None
    needs_link: bool = False
    penalties: Mapping[str, Penalty] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether the largest number of a row of the output is the answer."""
        return self.link == "softmax"


def _like_output(outputs: list[TensorType]) -> TensorType:
    return outputs[0]


def _labels(outputs: list[TensorType]) -> TensorType:
    return TensorType(outputs[0].shape[:-1], INT32)


def _of_one_output(emit: RowLoss) -> PerExample:
    def per_example(b: Builder, outputs: list[Value], y: Value) -> Value:
        (output,) = outputs
        return mean_rows(b, emit(b, output, y))

    return per_example


#: How the emitter of each name is made; its arguments are the options of the loss.
_MADE_BY: dict[str, tuple[Callable[..., RowLoss], Link | None]] = {
    "sparse_categorical_crossentropy": (row_losses.sparse_cross_entropy, "softmax"),
    "categorical_crossentropy": (row_losses.cross_entropy, "softmax"),
    "categorical_focal_crossentropy": (row_losses.focal_cross_entropy, "softmax"),
    "kl_divergence": (row_losses.kl_divergence, "softmax"),
    "binary_crossentropy": (row_losses.binary_cross_entropy, "sigmoid"),
    "binary_focal_crossentropy": (row_losses.binary_focal_cross_entropy, "sigmoid"),
    "mse": (row_losses.squared_error, None),
    "mae": (row_losses.absolute_error, None),
    "huber": (row_losses.huber, None),
    "log_cosh": (row_losses.log_cosh, None),
    "cosine_similarity": (row_losses.cosine_similarity, None),
    "hinge": (row_losses.hinge, None),
}
LOSSES = tuple(_MADE_BY)


def named_loss(name: str, **options: float) -> Loss:
    """A loss by name.

    Args:
        name: one of `LOSSES`. Those with "crossentropy" and `kl_divergence` are from logits; of a model that ends in
            the softmax (sigmoid) they read what stands before it.
        **options: `label_smoothing` (0) of the cross entropies, `gamma` (2) and `alpha` of the focal ones, `delta` (1)
            of `huber`; as in Keras.

    Raises:
        UsageError: an unknown name or option, or an option that is no number.
    """
    if name not in _MADE_BY:
        raise UsageError(f"unknown loss {name!r}.{nearest(name, LOSSES)} Known: {', '.join(LOSSES)}.")
    make, link = _MADE_BY[name]
    known = inspect.signature(make).parameters
    for option, value in options.items():
        if option not in known:
            raise UsageError(f"the loss {name} has no option {option!r}.{nearest(option, known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise UsageError(f"the loss {name}: {option} is a number that is not negative, got {value!r}")
    target = _labels if name == "sparse_categorical_crossentropy" else _like_output
    return Loss(name, target, _of_one_output(make(**options)), link)


def loss_from_table(table: Mapping[str, Any]) -> Loss:
    """A loss from `{"name": ..., options}`. Raises UsageError as `named_loss`."""
    options = dict(table)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"loss: expected a name, or a table with a name and options, got {dict(table)!r}")
    return named_loss(name, **options)


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

    loss = sum(weight * per-example loss) / sum(weight) + penalties, without the division unless `mean` (the penalties
    are then multiplied by sum(weight)).
    correct = sum(weight * share of right answers in the row).

    Raises:
        UnsupportedError: the loss needs one output and the model has several.
        UsageError: the output is not what the loss reads, or an input has a name of the step's own.
    """
    outputs = list(graph.outputs.values())
    if loss.name in LOSSES and len(outputs) != 1:
        raise UnsupportedError(
            f"the loss {loss.name} takes one output and the model has {len(outputs)}: pass a function"
        )
    if loss.link is not None:
        _check_logits(loss, outputs[0])
    if taken := sorted(RESERVED & {v.name for v in graph.inputs}):
        raise UsageError(
            f"the model has an input named {taken[0]!r}, a name that the training step needs for itself "
            f"({', '.join(sorted(RESERVED))}): rename the argument or the keras.Input"
        )
    folded = folded_link(graph, outputs[0], loss.link) if loss.link else None
    if loss.needs_link and folded is None:
        raise UsageError(
            f"the loss {loss.name} is compiled with from_logits=False, and the model does not end in a {loss.link}: "
            f"name the loss, {loss.name!r}, if the output holds logits, or let the model end in the {loss.link}"
        )
    b = Builder(graph.copy())
    with b.at(Origin("loss")):
        y = b.input("y", loss.target([v.type for v in outputs]))
        weight = b.input("weight", TensorType(y.shape[:1], FLOAT32))
        reads = outputs if folded is None else [folded.logits(b)]
        rows = loss.per_example(b, reads, y)
        total, weights = b(ops.Sum((0,)), b(ops.Mul(), rows, weight)), b(ops.Sum((0,)), weight)
        for value, parameter in graph.parameters.items():
            if (penalty := loss.penalties.get(parameter.name)) is not None:
                total = b(ops.Add(), total, b(ops.Mul(), penalty.emit(b, value), weights))
        b.graph.outputs["loss"] = b(ops.Div(), total, weights) if mean else total
        if loss.link is not None:
            hits = mean_rows(b, b(ops.Cast(FLOAT32), _right(b, loss.link, reads[0], y)))
            b.graph.outputs["correct"] = b(ops.Sum((0,)), b(ops.Mul(), hits, weight))
    return b.graph


def link_notes(graph: Graph, loss: Loss) -> list[Note]:
    """What to say of the softmax or sigmoid that a model ends in, where the loss reads what stands before it."""
    folded = folded_link(graph, next(iter(graph.outputs.values())), loss.link) if loss.link else None
    if folded is None:
        return []
    why = f"{loss.name} reads the logits before this {loss.link}; `infer` gives what the model gives"
    return [Note(folded.node.origin.layer or loss.link or "", "in the loss", why)]


def _check_logits(loss: Loss, output: Value) -> None:
    if loss.link == "softmax" and len(output.shape) < 2:
        raise UsageError(f"the loss {loss.name} wants logits [batch, ..., classes]; the output is {list(output.shape)}")
    if loss.link == "softmax" and output.shape[-1] == 1:
        raise UsageError(
            f"the loss {loss.name} compares classes, and the output {list(output.shape)} has one number a row: use "
            "binary_crossentropy (y is 0 or 1), or mse for a number"
        )


def _right(b: Builder, link: Link, logits: Value, y: Value) -> Value:
    """Which answers are right, as bools."""
    if link == "sigmoid":
        return b(ops.Equal(), b(ops.Greater(), logits, 0.0), b(ops.Greater(), y, 0.5))
    answer = y if y.dtype == INT32 else b(ops.ArgMax(len(y.shape) - 1), y)
    return b(ops.Equal(), b(ops.ArgMax(len(logits.shape) - 1), logits), answer)
