"""Losses: per-example loss, weighted by `weight[B]`, as graph ops behind the model's output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import isfinite
from typing import Any

from converter import row_losses
from converter.errors import UnsupportedError, UsageError, nearest
from converter.ir import FLOAT32, INT32, Builder, Graph, Origin, TensorType, Value, ops
from converter.links import FoldedLink, Link, folded_link
from converter.manifest import TARGET
from converter.notes import Note
from converter.row_losses import RowLoss, mean_rows

#: Inputs that training adds to the model's own, and what its signatures give.
RESERVED = {TARGET, "weight", "learning_rate", "tick"}
RESULTS = {"loss", "correct", "done"}
#: Emits the per-example loss [B] from the outputs and the targets.
PerExample = Callable[[Builder, list[Value], list[Value]], Value]


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
        targets: types of the targets by name (`y`, or `y/...` for several) for outputs of given types.
        per_example: emits the loss of each row, shape [B].
        link: what the loss applies to the output itself, which holds logits: right answers can be counted then. Of a
            model that ends in it, the loss reads what stands before.
        needs_link: the output is said to hold probabilities, so the model has to end in the link.
        penalties: regularizers by the name of the parameter; those of frozen parameters are left out.
    """

    name: str
    targets: Callable[[list[TensorType]], dict[str, TensorType]]
    per_example: PerExample
    link: Link | None = None
    needs_link: bool = False
    penalties: Mapping[str, Penalty] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether the largest number of a row of the output is the answer."""
        return self.link == "softmax"

    @property
    def stated(self) -> str:
        """What the manifest says of it."""
        return self.name

    def terms(self, graph: Graph) -> list[Term]:
        """What it reads of a forward graph."""
        return [Term("", self, tuple(graph.outputs))]


@dataclass(frozen=True)
class JointLoss:
    """Losses of several outputs, added up.

    Attributes:
        parts: the loss of each output, by its name; an output that is not named has none.
        factors: what the losses are multiplied by; 1 where nothing is said.
        penalties: as for `Loss`.
    """

    parts: Mapping[str, Loss]
    factors: Mapping[str, float] = field(default_factory=dict)
    penalties: Mapping[str, Penalty] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(f"{part.name} of {output}" for output, part in self.parts.items())

    @property
    def classifies(self) -> bool:
        """No output speaks for all."""
        return False

    @property
    def stated(self) -> dict[str, str]:
        """What the manifest says of it."""
        return {output: part.name for output, part in self.parts.items()}

    def terms(self, graph: Graph) -> list[Term]:
        """What it reads of a forward graph."""
        return [Term(name, part, (name,), self.factors.get(name, 1.0)) for name, part in self.parts.items()]


@dataclass(frozen=True)
class Term:
    """A loss at its place in a model.

    Attributes:
        name: of the output, where each has a loss of its own.
        loss: the loss.
        reads: names of the outputs that it reads.
        factor: what it is multiplied by.
    """

    name: str
    loss: Loss
    reads: tuple[str, ...]
    factor: float = 1.0

    def outputs(self, graph: Graph) -> list[Value]:
        """What it reads, in a graph with all outputs."""
        return [graph.outputs[name] for name in self.reads]

    def targets(self, graph: Graph) -> dict[str, TensorType]:
        """Types of its targets, by the names that they have in the program."""
        own = self.loss.targets([v.type for v in self.outputs(graph)])
        root = f"{TARGET}/{self.name}" if self.name else TARGET
        return {root + name.removeprefix(TARGET): type for name, type in own.items()}


def _like_output(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {TARGET: outputs[0]}


def _labels(outputs: list[TensorType]) -> dict[str, TensorType]:
    return {TARGET: TensorType(outputs[0].shape[:-1], INT32)}


def _of_one_output(emit: RowLoss) -> PerExample:
    def per_example(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        (output,), (y,) = outputs, targets
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
    targets = _labels if name == "sparse_categorical_crossentropy" else _like_output
    return Loss(name, targets, _of_one_output(make(**options)), link)


def loss_from_table(table: Mapping[str, Any]) -> Loss:
    """A loss from `{"name": ..., options}`. Raises UsageError as `named_loss`."""
    options = dict(table)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"loss: expected a name, or a table with a name and options, got {dict(table)!r}")
    return named_loss(name, **options)


def traced_loss(graph: Graph, name: str, order: Sequence[int]) -> Loss:
    """The person's own function, traced: its inputs are the outputs of the model, in some order, and the targets."""
    targets = graph.inputs[len(order) :]

    def emit(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        (result,) = b.inline(graph, [*(outputs[i] for i in order), *targets]).values()
        return result

    (result,) = graph.outputs.values()
    if result.shape != targets[0].shape[:1]:
        raise UsageError(
            f"the loss {name} must return one number per example, shape [{(*targets[0].shape, 'batch')[0]}]; "
            f"it returns {list(result.shape)}. Take the mean over the other axes."
        )
    return Loss(name, lambda outputs: {y.name: y.type for y in targets}, emit)


def attach_loss(graph: Graph, loss: Loss | JointLoss, mean: bool = True) -> Graph:
    """Adds the targets and `weight` as inputs and the outputs `loss` [] (and `correct` []) to a forward graph.

    loss = sum(weight * per-example loss) / sum(weight) + penalties, without the division unless `mean` (the penalties
    are then multiplied by sum(weight)).
    correct = sum(weight * share of right answers in the row), for a loss that counts them.
    Where each output has a loss of its own, `<output>_loss` [] = sum(weight * per-example loss) without its factor, and
    `<output>_accuracy` [] is what `correct` is else.

    Raises:
        UnsupportedError: the loss needs one output and the model has several.
        UsageError: the output is not what the loss reads, or an input or output has a name of the step's own.
    """
    terms = loss.terms(graph)
    _check_names(graph)
    for term in terms:
        _check_term(graph, term)
    b = Builder(graph.copy())
    with b.at(Origin("loss")):
        types = [term.targets(graph) for term in terms]
        targets = [[b.input(name, type) for name, type in ours.items()] for ours in types]
        weight = b.input("weight", TensorType(targets[0][0].shape[:1], FLOAT32))

        def total(rows: Value) -> Value:
            return b(ops.Sum((0,)), b(ops.Mul(), rows, weight))

        parts = []
        for term, y in zip(terms, targets, strict=True):
            folded = _folded(graph, term)
            reads = term.outputs(graph) if folded is None else [folded.logits(b)]
            parts.append((term, reads, y, term.loss.per_example(b, reads, y)))
        rows = [rows if term.factor == 1 else b(ops.Mul(), rows, term.factor) for term, _, _, rows in parts]
        result, weights = total(reduce(partial(b, ops.Add()), rows)), b(ops.Sum((0,)), weight)
        for value, parameter in graph.parameters.items():
            if (penalty := loss.penalties.get(parameter.name)) is not None:
                result = b(ops.Add(), result, b(ops.Mul(), penalty.emit(b, value), weights))
        b.graph.outputs["loss"] = b(ops.Div(), result, weights) if mean else result
        for term, reads, y, row in parts:
            if term.name:
                b.graph.outputs[f"{term.name}_loss"] = total(row)
            if term.loss.link is not None:
                hits = mean_rows(b, b(ops.Cast(FLOAT32), _right(b, term.loss.link, reads[0], y[0])))
                b.graph.outputs[f"{term.name}_accuracy" if term.name else "correct"] = total(hits)
    return b.graph


def link_notes(graph: Graph, loss: Loss | JointLoss) -> list[Note]:
    """What to say of the softmax or sigmoid that an output ends in, where the loss reads what stands before it."""
    notes = []
    for term in loss.terms(graph):
        if (folded := _folded(graph, term)) is not None:
            link = term.loss.link or ""
            why = f"{term.loss.name} reads the logits before this {link}; `infer` gives what the model gives"
            notes.append(Note(folded.node.origin.layer or link, "in the loss", why))
    return notes


def _folded(graph: Graph, term: Term) -> FoldedLink | None:
    return folded_link(graph, term.outputs(graph)[0], term.loss.link) if term.loss.link else None


def _check_names(graph: Graph) -> None:
    if taken := sorted(v.name for v in graph.inputs if v.name in RESERVED or v.name.startswith(f"{TARGET}/")):
        raise UsageError(
            f"the model has an input named {taken[0]!r}, a name that the training step needs for itself "
            f"({', '.join(sorted(RESERVED))}): rename the argument or the keras.Input"
        )
    if taken := sorted(RESULTS & graph.outputs.keys()):
        raise UsageError(
            f"the model has an output named {taken[0]!r}, a name that the training step needs for itself "
            f"({', '.join(sorted(RESULTS))}): rename the key or the layer"
        )


def _check_term(graph: Graph, term: Term) -> None:
    loss, outputs = term.loss, term.outputs(graph)
    if loss.name in LOSSES and len(outputs) != 1:
        names = ", ".join(f"{name!r}: ..." for name in term.reads)
        raise UnsupportedError(
            f"the loss {loss.name} takes one output and the model has {len(outputs)}: name one for each output, "
            f"loss={{{names}}} (None for an output that has none), or pass a function (outputs, targets) of all"
        )
    rows = graph.inputs[0].shape[:1]
    if term.name and outputs[0].shape[:1] != rows:
        raise UsageError(
            f"the output {term.name} has the shape {list(outputs[0].shape)}, which is not one row for each of the "
            f"{rows[0]} rows of the input: give it no loss (None), or pass one function (outputs, targets) of all"
        )
    if loss.link is not None:
        _check_logits(loss, outputs[0])
    if loss.needs_link and _folded(graph, term) is None:
        raise UsageError(
            f"the loss {loss.name} is compiled with from_logits=False, and the model does not end in a {loss.link}: "
            f"name the loss, {loss.name!r}, if the output holds logits, or let the model end in the {loss.link}"
        )


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
