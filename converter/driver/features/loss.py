"""Loss: joined with the model, and what must hold before a step is built of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from converter.driver.compilation import Compilation
from converter.driver.features.blocks import contracted_as_stored, with_few_logits
from converter.driver.losses import import_loss
from converter.driver.requests import check_fisher
from converter.frontends.class_room import room_of
from converter.ir import Graph, is_described
from converter.ir.random_numbers import call_counter
from converter.passes.canonical import canonicalize
from converter.program.manifest import INFER
from converter.support.errors import NumericError, UsageError
from converter.support.notes import Note
from converter.training.augment import augmentation
from converter.training.batch_dependence import check_parts, whole_batches
from converter.training.batch_norm import by_batch, following
from converter.training.dropout import without_dropout
from converter.training.losses import JointLoss, Loss
from converter.training.step import StepForm


def form_step(c: Compilation) -> Compilation:
    """Say how the step is cut into signatures, and what it does beside the loss."""
    step = StepForm(
        c.request.step,
        in_parts=c.request.accumulates,
        scale=float(c.options.loss_scale),
        trained=lambda graph: with_few_logits(c, contracted_as_stored(c, by_batch(graph, c.by_batch, c.normalized))),
        averaged=lambda graph: following(graph, c.by_batch),
        rate_first=c.target.is_cpu,
        row_norm=c.options.row_clipping,
        row_losses=c.options.row_losses == "on",
    )
    return replace(c, step=step, counter=call_counter())


def check_weights(c: Compilation) -> Compilation:
    """Raise NumericError where a weight is not finite."""
    known = [p for p in c.graphs.model.parameters.values() if not is_described(p.model_value)]
    broken = [p.name for p in known if not np.isfinite(p.view.of(p.model_value)).all()]
    if broken:
        raise NumericError(f"these weights hold NaN or infinity and cannot be trained: {', '.join(broken)}")
    return c


def join_loss(c: Compilation) -> Compilation:
    """Read the loss for this model, with the regularizers of its weights."""
    goal = replace(_loss(c, c.graphs.model), penalties=c.source.regularization.penalties)
    near = _near_base(c, goal)
    _check_rows(c, goal)
    return replace(c, goal=goal, step_goal=near, notes=[*c.notes, *_of_penalty(c.options.keep_base)])


def _check_rows(c: Compilation, goal: Loss | JointLoss) -> None:
    """Raise UsageError where rows are to be clipped one by one, and the loss is not a mean of theirs."""
    if c.options.row_clipping is None:
        return
    parts = list(goal.parts.values()) if isinstance(goal, JointLoss) else [goal]
    if goal.penalties:
        raise UsageError(
            f"row_clipping: {', '.join(goal.penalties)} has a regularizer, whose gradient is of no row: leave one of "
            "the two out (weight decay of the optimizer, as of adamw, is none of the loss)",
            page="gradients",
        )
    if summed := [part.title for part in parts if part.summed]:
        raise UsageError(
            f"row_clipping clips before the mean over rows is taken, and the loss {', '.join(summed)} is their sum: "
            "take one that is a mean",
            page="gradients",
        )


def _of_penalty(weight: float) -> list[Note]:
    """Return what to say of a penalty for leaving the base."""
    said = f"`train` gives the loss + {weight:g} * KL(base || model), `evaluate` the loss alone"
    return [Note("keep_base", "in the step", said)] if weight else []


def _near_base(c: Compilation, goal: Loss | JointLoss) -> Loss | JointLoss:
    """Return what a step minimizes: with `keep_base`, the loss and a penalty for leaving the base.

    Raises:
        UsageError: the loss is not of the probabilities of one output, or the base has none worth keeping.
    """
    if not (weight := float(c.options.keep_base)):
        return goal
    parts = goal.parts if isinstance(goal, JointLoss) else {"": goal}
    (name, loss), *others = parts.items()
    if others:
        raise UsageError(
            f"keep_base keeps the probabilities of one output, and {len(parts)} have a loss ({', '.join(parts)}): give "
            "None to all others (loss={...}), or leave keep_base out",
            page="losses",
        )
    if loss.link is None:
        raise UsageError(
            f"keep_base compares probabilities with those of the base, and the loss {loss.title} is not known to read "
            "any: take a cross entropy by its name (sparse_categorical_crossentropy, binary_crossentropy, next_token), "
            "or leave keep_base out",
            page="losses",
        )
    if c.options.classes is not None:
        raise UsageError(
            "keep_base keeps what the model knew, and it knew neither the classes of a fresh head nor those that come "
            "later (classes=): leave one of the two out",
            page="losses",
        )
    loss = replace(loss, keep_base=weight)
    return replace(goal, parts={name: loss}) if isinstance(goal, JointLoss) else loss


def _loss(c: Compilation, forward: Graph) -> Loss | JointLoss:
    """The loss of a forward graph, in the form that a step in parts needs where the batch is taken so."""
    try:
        made = import_loss(c.loss, forward, c.options.y, c.options.loss_weights, c.source.library)
    except Exception as error:
        if (room := room_of(c.options.classes)) is not None and not isinstance(c.loss, str | Loss):
            error.add_note(
                f"classes='{room}': the output has {room.total} classes, those that may come too: what the loss holds "
                "for each class, and y=, are of as many."
            )
        raise
    in_parts = c.request.accumulates or c.options.memory_budget is not None or "fisher" in c.request.signatures
    return made.for_parts() if in_parts else made


def find_mixing(c: Compilation) -> Compilation:
    """Find where rows of a batch influence each other. Raise UsageError where they may not."""
    mixing = whole_batches(c.graphs.model, c.goal, c.request.signatures, c.request.step, c.augmentation)
    if c.several_rows is not None:
        _check_parts(c)
    check_fisher(
        c.request, any(p.kind == "choice" for p in c.graphs.model.parameters.values()), mixing.get(c.request.step)
    )
    if c.options.row_losses == "on" and (place := mixing.get(c.request.step)) is not None:
        raise UsageError(
            f"row_losses='on': rows of a batch influence each other ({place}), so no row has a loss of its own: "
            "leave it out, or have batch normalization run as in inference (batch_norm=)",
            page="losses",
        )
    others = {f"{INFER}{rows}": mixing["infer"] for rows in c.request.rows_to_infer if "infer" in mixing}
    if c.options.row_clipping is not None and (place := mixing.get(c.request.step)) is not None:
        raise UsageError(
            f"row_clipping: rows of a batch influence each other ({place}), so no row has a gradient of its own: leave "
            "it out, or have batch normalization run as in inference (batch_norm=)",
            page="gradients",
        )
    return replace(c, mixing=mixing | others)


def _check_parts(c: Compilation) -> None:
    """Raise UsageError where rows of the model, its loss or what a step does to its inputs influence each other."""
    assert c.several_rows is not None
    forward = canonicalize(c.several_rows if c.options.dropout == "train" else without_dropout(c.several_rows))
    augmented = None
    if c.options.augment is not None:
        augmented = canonicalize(augmentation(c.options.augment, forward.inputs, *call_counter()))
    check_parts(forward, _loss(c, forward), augmented)
