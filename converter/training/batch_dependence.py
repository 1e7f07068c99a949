"""Batch coupling: finds where the rows of a batch influence each other, as batch statistics make them.

Rows that pad a short batch would change the result there, and micro-batches its meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from converter.ir import Graph, Node, Value, ops, reachable
from converter.ir.row_dependence import NO_ROW, UNBOUNDED, Rows, RowsMixed, compact, rows_through
from converter.program.manifest import ON_FEATURES
from converter.support.errors import UsageError
from converter.support.notes import Note
from converter.training.losses import JointLoss, Loss, attach_loss
from converter.training.schemes import cut_frozen_prefix


def whole_batches(
    graph: Graph,
    loss: Loss | JointLoss,
    signatures: Collection[str],
    step: str,
    augmentation: Graph | None = None,
) -> dict[str, str]:
    """Return the signatures that take a whole batch or nothing, and where rows influence each other in each.

    Args:
        graph: the forward graph.
        loss: what trains it.
        signatures: what the program is to offer.
        step: the signature that takes the rows of a step.
        augmentation: what a step does to its inputs first.

    Raises:
        UsageError: kept features were asked for, which would give something else.
    """
    evaluated, inferred = _scored(graph, loss), mixing(graph, graph.outputs.values())
    trained = _augmented(augmentation) or evaluated
    if "features" in signatures:
        features, _ = cut_frozen_prefix(graph)
        if (mixed := mixing(features, features.outputs.values())) is not None:
            raise UsageError(
                f"rows of a batch influence each other in the frozen layers ({mixed}), so what these give cannot be "
                "kept for another batch: leave the signature `features` out",
                page="mixing",
            )
    found = {step: trained, "evaluate": evaluated, "infer": inferred}
    asked = {name: place for name, place in found.items() if place is not None and name in {*signatures, step}}
    on_features = asked if "features" in signatures else {}
    return asked | {f"{name}{ON_FEATURES}": place for name, place in on_features.items()}


def check_parts(graph: Graph, loss: Loss | JointLoss, augmentation: Graph | None = None) -> None:
    """Whether the rows of a step may come in several calls.

    Args:
        graph: the forward graph of two rows or more: of one row nothing can be seen.
        loss: what trains it.
        augmentation: what a step does to its inputs first.

    Raises:
        UsageError: they would give something else than the whole batch.
    """
    if (place := _augmented(augmentation) or _scored(graph, loss)) is not None:
        raise UsageError(
            f"rows of a batch influence each other ({place}), so micro-batches would train something else: leave "
            "micro_batch and memory_budget out, or choose a smaller batch",
            page="mixing",
        )


def _augmented(augmentation: Graph | None) -> str | None:
    return None if augmentation is None else mixing(augmentation, augmentation.outputs.values())


def _scored(graph: Graph, loss: Loss | JointLoss) -> str | None:
    scored = attach_loss(graph, loss)
    return mixing(scored, _of_rows(scored))


def _of_rows(scored: Graph) -> list[Value]:
    """Return what is weighted by row: the losses, and whether answers are right."""
    weight = next(v for v in scored.inputs if v.name == "weight")
    weighted = [node for node in scored.nodes if weight in node.inputs and isinstance(node.op, ops.Mul)]
    return [v for node in weighted for v in node.inputs if v is not weight]


def mixing_notes(places: Mapping[str, str]) -> list[Note]:
    """Return what to say of `whole_batches`."""
    by_place: dict[str, list[str]] = {}
    for name, place in places.items():
        by_place.setdefault(place, []).append(name)
    return [
        Note(
            place, "whole batches", f"rows influence each other here: a shorter batch is refused by {', '.join(names)}"
        )
        for place, names in by_place.items()
    ]


def mixing(graph: Graph, results: Iterable[Value]) -> str | None:
    """Return the first place before `results` where rows influence each other, in words; None where none do.

    Args:
        graph: a forward graph, whose inputs have the batch as their first axis.
        results: values whose first axis is the batch too, or that have none.
    """
    results = list(results)
    needed = reachable(graph, results)
    known: dict[Value, Rows] = {value: _fed(value) for value in graph.inputs}
    known |= {value: Rows.number(array) for value, array in graph.constants.items() if value in needed}
    known |= {value: Rows.none(len(value.shape)) for value in graph.parameters}
    producers = graph.producers()
    for node in graph.nodes:
        if not needed.isdisjoint(node.outputs):
            try:
                known |= zip(node.outputs, rows_through(node, known), strict=True)
            except RowsMixed:
                return _place(node)
    for value in results:
        rows = compact(known[value].of)
        several = rows.size > 1 or value.shape[:1] > (1,)  # of several rows all elements may depend on one
        if several and ((rows != Rows.first_axis(value.shape).of) & (rows != NO_ROW)).any():
            return f"{_place(_told(producers, value))}, where rows change places"
    return None


def _told(producers: Mapping[Value, Node], value: Value) -> Node:
    """Return the last node before a value of which it is known where it comes from."""
    made = producers[value]
    while not made.origin.source and made.inputs and made.inputs[0] in producers:
        made = producers[made.inputs[0]]
    return made


def _fed(value: Value) -> Rows:
    rows = Rows.first_axis(value.shape)
    return rows.within(0, UNBOUNDED) if value.dtype.kind == "i" else rows


def _place(node: Node) -> str:
    return f"{node.op.name} in {node.origin}" if node.origin.layer or node.origin.source else node.op.name
