"""Loss types: what one compares, and the ops that it emits; of one output, of all, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from converter.ir import Builder, Graph, TensorType, Value, ops, reachable
from converter.program.manifest import TARGET, TargetLabels
from converter.support.errors import UsageError
from converter.training.losses.links import Link

#: Emits the loss of each row, or of a row and place, from the outputs and the targets.
PerExample = Callable[[Builder, list[Value], list[Value]], Value]
#: Types of the targets by name (`y`, or `y/...` for several) for outputs of given types.
Targets = Callable[[list[TensorType]], dict[str, TensorType]]
#: The labels or numbers that it takes for them, of those of which something is to be said, likewise.
Labels = Callable[[list[TensorType]], dict[str, TargetLabels]]


@dataclass(frozen=True)
class Penalty:
    """What a regularizer adds to the loss: l1 * sum(|w|) + l2 * sum(w^2)."""

    l1: float = 0.0
    l2: float = 0.0

    def emit(self, b: Builder, weight: Value) -> Value:
        """Return the penalty of a weight, []."""
        return self.over(b, weight, tuple(range(len(weight.shape))))

    def over(self, b: Builder, weight: Value, axes: tuple[int, ...]) -> Value:
        """Return the same of each element of the other axes."""
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
        targets: what it compares the outputs with.
        per_example: emits the loss of each row, or of a row and place, of which the mean is taken.
        link: what the loss applies to the output itself, which holds logits: right answers can be counted then. Of a
            model that ends in it, the loss reads what stands before.
        needs_link: the output is said to hold probabilities, so the model has to end in the link.
        needs_logits: the output is said to hold logits, to which Keras applies the link even where the model has.
        links_again: the link is applied to what the model gives whatever it ends in, as PyTorch does.
        penalties: regularizers by the name of the parameter; those of frozen parameters are left out.
        outputs: how many outputs it reads; None for all that there are.
        mask: emits, from y, 1 for the places whose answers count, and 0 for the others; None where all count. The loss
            is a mean over those of each row.
        places: emits the same where the loss is to be the mean over those of the batch.
        summed: whether rows and places are added up, where else their mean is taken.
        factor: what it is multiplied by.
        counts: whether right answers are counted, where there is a link.
        labels: the labels or numbers that it takes for its targets.
        note: what its author may not expect of it; empty for nothing.
        keep_base: what is added to it is so many times how far the model's probabilities are from those of the model as
            it was built (`base.py`), where there is a link.
        in_parts: the loss where a step takes a batch in parts, which cannot leave out what `places` does; None: this.
        given_as: what its library calls it; empty: its name.
    """

    name: str
    targets: Targets
    per_example: PerExample
    link: Link | None = None
    needs_link: bool = False
    needs_logits: bool = False
    links_again: bool = False
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    outputs: int | None = None
    mask: Callable[[Builder, Value], Value] | None = None
    places: Callable[[Builder, Value], Value] | None = None
    summed: bool = False
    factor: float = 1.0
    counts: bool = True
    labels: Labels = lambda outputs: {}
    note: str = ""
    keep_base: float = 0.0
    in_parts: Loss | None = None
    given_as: str = ""

    @property
    def classifies(self) -> bool:
        """Whether the largest number of a row of the output is the answer."""
        return self.link == "softmax" and self.counts

    @property
    def title(self) -> str:
        """For people: what it is called where they have it from."""
        return self.given_as or self.name

    @property
    def stated(self) -> str:
        """What the manifest says of it."""
        return self.name

    def terms(self, graph: Graph) -> list[Term]:
        """Return what it reads of a forward graph."""
        return [Term("", self, tuple(graph.outputs))]

    def for_parts(self) -> Loss:
        """Return the loss of a step that takes a batch in parts."""
        return self if self.in_parts is None else replace(self.in_parts, factor=self.factor, penalties=self.penalties)


@dataclass(frozen=True)
class JointLoss:
    """Losses of several outputs, added up.

    Attributes:
        parts: the loss of each output, by its name; an output that is not named has none.
        penalties: as for `Loss`.
    """

    parts: Mapping[str, Loss]
    penalties: Mapping[str, Penalty] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """For people."""
        return ", ".join(f"{part.title} of {output}" for output, part in self.parts.items())

    @property
    def classifies(self) -> bool:
        """No output speaks for all."""
        return False

    @property
    def stated(self) -> dict[str, str]:
        """What the manifest says of it."""
        return {output: part.name for output, part in self.parts.items()}

    def terms(self, graph: Graph) -> list[Term]:
        """Return what it reads of a forward graph."""
        return [Term(name, part, (name,)) for name, part in self.parts.items()]

    def for_parts(self) -> JointLoss:
        """Return the losses of a step that takes a batch in parts."""
        return replace(self, parts={name: part.for_parts() for name, part in self.parts.items()})

    def weighed(self, factors: Mapping[str, float]) -> JointLoss:
        """Return the same with other factors, by the names of the outputs; 1 where nothing is said."""
        parts = {name: replace(part, factor=factors.get(name, 1.0)) for name, part in self.parts.items()}
        return replace(self, parts=parts)


@dataclass(frozen=True)
class Term:
    """A loss at its place in a model.

    Attributes:
        name: of the output, where each has a loss of its own.
        loss: the loss.
        reads: names of the outputs that it reads.
    """

    name: str
    loss: Loss
    reads: tuple[str, ...]

    def outputs(self, graph: Graph) -> list[Value]:
        """Return what it reads, in a graph with all outputs."""
        return [_masked(graph, name)[0] for name in self.reads]

    def depends_on(self, graph: Graph) -> list[str]:
        """Return names of the outputs that its value depends on; a function may be given others too."""
        outputs = self.outputs(graph)
        if len(outputs) == 1 or self.loss.outputs is not None:
            return list(self.reads)
        b = Builder()
        given = [b.input(name, value.type) for name, value in zip(self.reads, outputs, strict=True)]
        y = [b.input(name, type) for name, type in self.targets(graph).items()]
        needed = reachable(b.graph, [self.loss.per_example(b, given, y)])
        return [value.name for value in given if value in needed]

    def mask(self, graph: Graph) -> Value | None:
        """Return which places of its only output the model says to count, 1 or 0; None for all."""
        return _masked(graph, self.reads[0])[1] if len(self.reads) == 1 else None

    def targets(self, graph: Graph) -> dict[str, TensorType]:
        """Types of its targets, by the names that they have in the program."""
        own = self.loss.targets([v.type for v in self.outputs(graph)])
        return {self._here(name): type for name, type in own.items()}

    def labels(self, graph: Graph) -> dict[str, TargetLabels]:
        """Return what it takes for them, of those of which something is to be said."""
        own = self.loss.labels([v.type for v in self.outputs(graph)])
        return {self._here(name): labels for name, labels in own.items()}

    def _here(self, target: str) -> str:
        root = f"{TARGET}/{self.name}" if self.name else TARGET
        return root + target.removeprefix(TARGET)


def _masked(graph: Graph, name: str) -> tuple[Value, Value | None]:
    """Return an output, and the mask that the model gives it."""
    output = graph.outputs[name]
    node = graph.producers().get(output)
    return (node.inputs[0], node.inputs[1]) if node and isinstance(node.op, ops.Masked) else (output, None)


def traced_loss(graph: Graph, name: str, outputs: Sequence[int], targets: Sequence[str]) -> Loss:
    """Return the user's own function, traced.

    Args:
        graph: of the function; its inputs are outputs of the model, followed by the targets.
        name: of the function.
        outputs: which output of the model each of the first inputs is.
        targets: names of the targets in the order in which a session takes them, which need not be the graph's.

    Raises:
        UsageError: it does not return one number for each row.
    """
    by_name = {y.name: y for y in graph.inputs[len(outputs) :]}
    results, rows = list(graph.outputs.values()), (*by_name.values(), *graph.inputs)[0].shape[:1]
    if not rows or len(results) != 1 or results[0].shape != rows:
        returned = str(list(results[0].shape)) if len(results) == 1 else f"{len(results)} arrays"
        raise UsageError(
            f"the loss {name} must return one number per example, shape [batch]; "
            f"it returns {returned}. Take the mean over the other axes.",
            page="losses",
        )

    def emit(b: Builder, read: list[Value], given: list[Value]) -> Value:
        y = dict(zip(targets, given, strict=True))
        (result,) = b.inline(graph, [*(read[i] for i in outputs), *(y[name] for name in by_name)]).values()
        return result

    return Loss(name, lambda _: {name: by_name[name].type for name in targets}, emit)
