"""Loss graph after a forward graph: weighted by `weight[B]`, with regularizers, masks and metrics of `evaluate`."""

from __future__ import annotations

from functools import partial, reduce
from math import prod
from typing import NamedTuple

from converter.ir import FLOAT32, INT32, Builder, Graph, Origin, TensorType, Value, dependents, ops
from converter.program.manifest import MASK, ROW_LOSSES, TARGET
from converter.support.errors import UnsupportedError, UsageError
from converter.support.notes import Note
from converter.training.losses.base import with_penalty
from converter.training.losses.links import FoldedLink, Link, folded_link
from converter.training.losses.loss import JointLoss, Loss, Penalty, Term
from converter.training.losses.row_losses import MASKED, bounded, masked_mean, mean_rows

#: Inputs that training adds to the model's own, and what its signatures give.
RESERVED = {TARGET, "weight", "learning_rate", "tick"}
RESULTS = {"loss", "correct", "done"}
#: By which a mask reaches logits: each number stays at its place, or is only moved.
#: In place of no place at all that counts, of which the loss is 0.
_NONE_COUNTED = 1e-12


class LossPart(NamedTuple):
    """A term in a graph.

    Attributes:
        term: the term.
        targets: what it compares with.
        reads: what it reads of the outputs, or before them.
        rows: the loss of each row, [B]; under a mask 0 for the places that do not count.
        mask: which places count, where the model or the loss says so; the mean is over those of the batch.
    """

    term: Term
    targets: list[Value]
    reads: list[Value]
    rows: Value
    mask: Value | None


def _parts(graph: Graph, loss: Loss | JointLoss) -> tuple[Graph, list[LossPart]]:
    """Return the forward graph with the targets as inputs, and the parts of the loss."""
    terms = loss.terms(graph)
    _check_names(graph)
    for term in terms:
        _check_term(graph, term)
    b = Builder(graph.copy())
    parts = []
    with b.at(Origin("loss")):
        types = [term.targets(graph) for term in terms]
        targets = [[b.input(name, type) for name, type in ours.items()] for ours in types]
        for term, y in zip(terms, targets, strict=True):
            folded = _folded(graph, term)
            reads = term.outputs(graph) if folded is None else [folded.logits(b)]
            values = term.loss.per_example(b, reads, y)
            if folded is not None and _are_masked(graph, folded.node.inputs[0]):
                values = bounded(b, values)
            if term.loss.keep_base:
                values = with_penalty(b, term.loss, values, reads[0], y[0])
            mask = _mask(b, graph, term, y[:1], values)
            parts.append(LossPart(term, y, reads, _mean_rows(b, values, mask), mask))
    return b.graph, parts


def attach_loss(
    graph: Graph,
    loss: Loss | JointLoss,
    mean: bool = True,
    in_parts: bool | None = None,
    row_losses: bool = False,
) -> Graph:
    """Adds the targets and `weight` as inputs and the outputs `loss` [] (and `correct` []) to a forward graph.

    loss = sum(weight * per-example loss) / sum(weight) + penalties, without the division unless `mean` (the penalties
    are then multiplied by sum(weight)). Where the model masks its output, the mean is over the places that count, each
    with the weight of its row, as in Keras.
    correct = sum(weight * share of right answers in the row), for a loss that counts them. Where the model or the loss
    masks an output, `mask/<output>` [B, ...] is 1 for the places that count, and the share is of all places: who calls
    divides by the mean of the mask, which is one over all calls.
    A loss that is summed has neither the division nor the mean over places.
    Where each output has a loss of its own, `<output>_loss` [] = sum(weight * per-example loss) without its factor, and
    `<output>_accuracy` [] is what `correct` is else.
    With `row_losses` the output of that name, [B], is the per-example loss alone, with the penalty of `keep_base`
    for the row: no regularizer, no weight of the row.

    Args:
        graph: the forward graph.
        loss: of its outputs.
        mean: divide by the sum of the weights.
        in_parts: whether who calls adds up the loss of several calls; None: where it is not a mean.
        row_losses: give that of each row, too; then no loss is summed or has a mask over rows.

    Raises:
        UnsupportedError: the loss needs one output and the model has several.
        UsageError: the output is not what the loss reads, an input or output has a name of the step's own, or a sum, or
            the mean over the places that count, is asked for in parts or row by row.
    """
    scored, parts = _parts(graph, loss)
    if not mean if in_parts is None else in_parts:
        _check_parts(parts)
    if row_losses:
        _check_rows(parts)
    b = Builder(scored)
    with b.at(Origin("loss")):
        weight = b.input("weight", TensorType(parts[0].rows.shape, FLOAT32))
        weights = b(ops.Sum((0,)), weight)

        def added(values: Value) -> Value:
            return b(ops.Sum((0,)), b(ops.Mul(), values, weight))

        # Not by calling itself: such a function would hold the graph, and its weights, until garbage is looked for.
        def total(values: Value, mask: Value | None = None) -> Value:
            found = added(values)
            if mask is None:
                return found
            counted = b(ops.Maximum(), added(mean_rows(b, mask)), _NONE_COUNTED)
            return b(ops.Mul(), found, b(ops.Div(), weights, counted))

        add = partial(b, ops.Add())
        averaged = [part for part in parts if not part.term.loss.summed]
        summed = [(part, _summed(b, graph, part, total(part.rows))) for part in parts if part.term.loss.summed]
        plain = [_weighed(b, part.rows, part.term) for part in averaged if part.mask is None]
        sums = [total(reduce(add, plain))] if plain else []
        sums += [_weighed(b, total(part.rows, part.mask), part.term) for part in averaged if part.mask is not None]
        sums += [total(rows) for rows in _activities(b, graph)]
        for value, parameter in graph.parameters.items():
            if (penalty := loss.penalties.get(parameter.name)) is not None:
                sums.append(b(ops.Mul(), penalty.emit(b, value), weights))
        means = [b(ops.Div(), reduce(add, sums), weights) if mean else reduce(add, sums)] if sums else []
        b.graph.outputs["loss"] = reduce(add, [*means, *(_weighed(b, value, part.term) for part, value in summed)])
        losses = {part.term.name: total(part.rows, part.mask) for part in averaged}
        losses |= {part.term.name: b(ops.Mul(), value, weights) for part, value in summed}
        if row_losses:
            b.graph.outputs[ROW_LOSSES] = reduce(add, [_weighed(b, part.rows, part.term) for part in parts])
        for part in parts:
            if name := part.term.name:
                b.graph.outputs[f"{name}_loss"] = losses[name]
            if part.term.loss.link is not None and part.term.loss.counts:
                b.graph.outputs[f"{name}_accuracy" if name else "correct"] = total(_hits(b, part))
            if part.mask is not None:
                b.graph.outputs[MASK + part.term.reads[0]] = part.mask
    return b.graph


def _activities(b: Builder, graph: Graph) -> list[Value]:
    """Return what activity regularizers add to the loss of each row, where something that trains lies before them."""
    trained, found = dependents(graph, graph.weights()), []
    for node in graph.nodes:
        if isinstance(node.op, ops.Activity) and node.output in trained:
            x = node.inputs[0]
            found.append(Penalty(node.op.l1, node.op.l2).over(b, x, tuple(range(1, len(x.shape)))))
    return found


def _check_parts(parts: list[LossPart]) -> None:
    for part in parts:
        if part.term.loss.summed:
            why = f"the loss {part.term.loss.title} is the sum of its rows (reduction='sum'), and a step's sum"
        elif part.mask is not None:
            asked = "model masks its output (Masking, mask_zero)"
            if part.term.loss.places:
                said = "counts labels by their class or leaves some out (weight=, ignore_index=)"
                asked = f"loss {part.term.loss.title} {said}"
            why = f"the {asked}, and a step's mean over what counts"
        else:
            continue
        raise UsageError(
            f"{why} cannot be taken in parts: leave micro_batch, memory_budget and the signature 'fisher' out",
            page="losses",
        )


def _check_rows(parts: list[LossPart]) -> None:
    for part in parts:
        if not part.term.loss.summed and part.mask is None:
            continue
        why = "is the sum of its rows" if part.term.loss.summed else "is a mean over the places that count in all rows"
        raise UsageError(
            f"row_losses='on': the loss {part.term.loss.title} {why}, so no row has a loss of its own: take one that "
            "is the mean of its rows, or leave row_losses out",
            page="losses",
        )


def _are_masked(graph: Graph, logits: Value) -> bool:
    """Return whether a model may put -inf, or a number like it, in the place of logits, whose probability is 0 then."""
    makers, seen, ahead = graph.producers(), set[Value](), [logits]
    while ahead:
        value = ahead.pop()
        if value.dtype != FLOAT32 or value in seen:
            continue
        seen.add(value)
        array = graph.constants.get(value)
        if array is not None and bool((abs(array) > MASKED).any()):
            return True
        node = makers.get(value)
        if node is not None and (node.op.elementwise or node.op.moves_data):
            if abs(node.op.fill or 0.0) > MASKED:
                return True
            ahead += node.inputs
    return False


def _weighed(b: Builder, value: Value, term: Term) -> Value:
    return value if term.loss.factor == 1 else b(ops.Mul(), value, term.loss.factor)


def _summed(b: Builder, graph: Graph, part: LossPart, total: Value) -> Value:
    """Return the sum over places as well, from that of the means of the rows.

    The last axis is averaged, as in Keras.
    """
    places = prod(part.term.outputs(graph)[0].shape[1:-1])
    return total if places == 1 else b(ops.Mul(), total, float(places))


def _mask(b: Builder, graph: Graph, term: Term, y: list[Value], values: Value) -> Value | None:
    """Return the places that count: by the loss, and by the model where the loss has a number for each place."""
    own = None if term.loss.places is None else term.loss.places(b, *y)
    mask = term.mask(graph)
    if mask is None or term.loss.mask is not None or values.shape[: len(mask.shape)] != mask.shape:
        return own
    return mask if own is None else b(ops.Mul(), mask, own)


def _mean_rows(b: Builder, values: Value, mask: Value | None) -> Value:
    """Return the mean over all axes but the first, with 0 in place of what the mask leaves out."""
    if mask is None:
        return mean_rows(b, values)
    if inner := tuple(range(len(mask.shape), len(values.shape))):
        values = b(ops.Mean(inner), values)
    return mean_rows(b, b(ops.Mul(), values, mask))


def _hits(b: Builder, part: LossPart) -> Value:
    """Return the share of right answers of each row."""
    loss, y = part.term.loss, part.targets[0]
    hits = b(ops.Cast(FLOAT32), _right(b, loss.link or "softmax", part.reads[0], y))
    return _mean_rows(b, hits, part.mask) if loss.mask is None else masked_mean(b, hits, loss.mask(b, y))


def link_notes(graph: Graph, loss: Loss | JointLoss) -> list[Note]:
    """Return what to say of losses, and of the softmax or sigmoid before which one of them reads."""
    notes = []
    for term in loss.terms(graph):
        if term.loss.note:
            notes.append(Note(f"loss of {term.name}" if term.name else "loss", "row by row", term.loss.note))
        if term.loss.links_again:
            notes += _applied_twice(graph, term)
        if (folded := _folded(graph, term)) is not None:
            link = term.loss.link or ""
            why = f"{term.loss.name} reads the logits before this {link}; `infer` gives what the model gives"
            if term.loss.needs_logits:
                why += f". It was compiled with from_logits=True, so Keras applies the {link} twice; here it is once"
            notes.append(Note(folded.node.origin.layer or link, "in the loss", why))
    return notes


def _applied_twice(graph: Graph, term: Term) -> list[Note]:
    """Return what to say of a loss of logits after a model that gives probabilities."""
    link, output = term.loss.link or "softmax", term.outputs(graph)[0]
    try:
        folded = folded_link(graph, output, link)
        ends_in_logits = folded is None or isinstance(folded.node.op, ops.LogSoftmax)  # of which it is the same again
    except UsageError:
        ends_in_logits = False
    if ends_in_logits:
        return []
    said = f"the loss takes logits and applies a {link} to the probabilities that the model gives, as in PyTorch"
    return [Note("loss", "as in PyTorch", f"{said}: let the module end in the logits, which is what is mostly meant")]


def _folded(graph: Graph, term: Term) -> FoldedLink | None:
    if term.loss.link is None or term.loss.links_again:
        return None
    return folded_link(graph, term.outputs(graph)[0], term.loss.link)


def _check_names(graph: Graph) -> None:
    if taken := sorted(v.name for v in graph.inputs if v.name in RESERVED or v.name.startswith(f"{TARGET}/")):
        raise UsageError(
            f"the model has an input named {taken[0]!r}, a name that the training step needs for itself "
            f"({', '.join(sorted(RESERVED))}): rename the argument (of forward, call, the function) or the keras.Input",
            page="losses",
        )
    if taken := sorted(RESULTS & graph.outputs.keys()):
        raise UsageError(
            f"the model has an output named {taken[0]!r}, a name that the training step needs for itself "
            f"({', '.join(sorted(RESULTS))}): rename the key or the layer",
            page="losses",
        )


def _check_term(graph: Graph, term: Term) -> None:
    loss, outputs = term.loss, term.outputs(graph)
    if loss.outputs not in (None, 1, len(outputs)):
        raise UsageError(
            f"the loss {loss.title} compares {loss.outputs} outputs of the model, and there are {len(outputs)}: let "
            "the model return a tuple of so many embeddings",
            page="losses",
        )
    if loss.outputs == 1 and len(outputs) != 1:
        names = ", ".join(f"{name!r}: ..." for name in term.reads)
        raise UnsupportedError(
            f"the loss {loss.title} takes one output and the model has {len(outputs)}: name one for each output, "
            f"loss={{{names}}} (None for an output that has none), or pass a function (outputs, targets) of all",
            page="losses",
        )
    rows = graph.inputs[0].shape[:1]
    if term.name and outputs[0].shape[:1] != rows:
        raise UsageError(
            f"the output {term.name} has the shape {list(outputs[0].shape)}, which is not one row for each of the "
            f"{rows[0]} rows of the input: give it no loss (None), or pass one function (outputs, targets) of all",
            page="losses",
        )
    if loss.summed and len(outputs[0].shape) < 2:
        raise UsageError(
            f"the loss {loss.title} is summed (reduction='sum') over an output of one axis, of which Keras takes the "
            "mean: name the loss instead",
            page="losses",
        )
    if loss.link is not None:
        _check_logits(loss, outputs[0])
    if loss.needs_link and _folded(graph, term) is None:
        raise UsageError(
            f"the loss {loss.title} is compiled with from_logits=False, and the model does not end in a {loss.link}: "
            f"name the loss, {loss.name!r}, if the output holds logits, or let the model end in the {loss.link}",
            page="losses",
        )


def _check_logits(loss: Loss, output: Value) -> None:
    if loss.link == "softmax" and len(output.shape) < 2:
        raise UsageError(
            f"the loss {loss.title} wants logits [batch, ..., classes]; the output is {list(output.shape)}",
            page="losses",
        )
    if loss.link == "softmax" and output.shape[-1] == 1:
        raise UsageError(
            f"the loss {loss.title} compares classes, and the output {list(output.shape)} has one number a row: use "
            "binary_crossentropy (y is 0 or 1), or mse for a number",
            page="losses",
        )


def _right(b: Builder, link: Link, logits: Value, y: Value) -> Value:
    """Return which answers are right, as bools."""
    if link == "sigmoid":
        return b(ops.Equal(), b(ops.Greater(), logits, 0.0), b(ops.Greater(), y, 0.5))
    answer = y if y.dtype == INT32 else b(ops.ArgMax(len(y.shape) - 1), y)
    return b(ops.Equal(), b(ops.ArgMax(len(logits.shape) - 1), logits), answer)
