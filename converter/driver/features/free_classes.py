"""Checks that classes which are not there yet have no part in the loss, nor in the optimizer's update of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from converter.driver.compilation import Compilation
from converter.driver.losses import import_loss
from converter.frontends.class_room import LastLayer, Room
from converter.frontends.table import of_classes as of_classes_by_library
from converter.ir import Builder, Graph, TensorType, is_described
from converter.ir.evaluate import evaluate
from converter.program.class_names import FREE
from converter.program.manifest import ClassHead
from converter.support.errors import UsageError
from converter.training.losses import JointLoss, Loss
from converter.training.losses.attach import attach_loss
from converter.training.optim.program import GRADIENT, LOSS, PARAMETER, UPDATE

#: By how much losses may differ that are the same but for the order of additions.
_ROUNDING = 1e-4
#: By what part of the largest step two steps may.
_ROUNDED_STEP = 1e-3
#: Steps of an optimizer that are looked at: the second one has what the first one left in its slots.
_LOOKED_AT = 2
#: Steps that an app may take in its life: so long the bias of free classes has to stay far below the others.
_STEPS = 50_000
#: By what factor it may come nearer to 0 until then: at -300 the share of a free class is 0 exactly too.
_NEARER = 100.0


class _Like(NamedTuple):
    """What y= says of targets."""

    shape: tuple[int, ...]
    dtype: Any


def check_loss(c: Compilation, layer: LastLayer, room: Room) -> None:
    """Raise UsageError where the loss is not that of the known classes alone."""
    rng, rows = np.random.default_rng(0), layer.sum.output.shape[0]
    logits = rng.normal(size=(rows, room.total)).astype(np.float32)
    known = max(room.own, 2)  # of a single class a softmax is no loss: one has come then
    labels = rng.integers(0, known, rows)
    found = []
    for bias in (FREE, 2 * FREE):
        free = logits[:, known:] + np.float32(bias)
        found.append(_loss_of(c.goal, layer, np.concatenate([logits[:, :known], free], 1), labels))
    if (goal := _of_classes(c, layer, rows, room, known)) is not None:
        found.append(_loss_of(goal, layer, logits[:, :known], labels))
    if not np.allclose(found[1:], found[0], rtol=_ROUNDING, atol=_ROUNDING**2):
        raise UsageError(
            f"classes='{room}': the loss {c.goal.title} is not that of the known classes alone: classes that are not "
            "there yet count in it, as in label smoothing, in means over classes and in losses that compare numbers. "
            "Take a cross entropy of a softmax without label smoothing (sparse_categorical_crossentropy, "
            "categorical_crossentropy), in which these have no share",
            page="losses",
        )


def _of_classes(c: Compilation, layer: LastLayer, rows: int, room: Room, classes: int) -> Loss | JointLoss | None:
    """Return the loss of a model of another number of classes; None where the user's own code is of one number."""

    def of_classes(y: Any) -> Any:
        if isinstance(y, Mapping):
            return {name: of_classes(one) for name, one in y.items()}
        if isinstance(y, list | tuple):
            return tuple(map(of_classes, y))
        is_of_classes = len(y.shape) > 1 and y.shape[-1] == room.total
        return _Like((*y.shape[:-1], classes), y.dtype) if is_of_classes else y

    loss = of_classes_by_library(c.loss, room.total, classes, c.source.library)
    y = None if c.options.y is None else of_classes(c.options.y)
    try:
        return import_loss(loss, _ending(layer, rows, classes), y, None, c.source.library)
    except Exception:  # of whatever kind the user's code raises
        if isinstance(loss, str | Loss):
            raise
        return None


def _ending(layer: LastLayer, rows: int, classes: int) -> Graph:
    """Return what a model of so many classes does with its logits."""
    b = Builder()
    logits = b.input("logits", TensorType((rows, classes)))
    b.graph.outputs["output"] = logits if layer.link is None else b(layer.link.op, logits)
    return b.graph


def _loss_of(goal: Loss | JointLoss, layer: LastLayer, logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the loss of logits [rows, classes] by labels, or where it takes no labels, by one-hot rows or ones."""
    (loss,) = goal.parts.values() if isinstance(goal, JointLoss) else (goal,)
    graph = attach_loss(_ending(layer, *logits.shape), replace(loss, penalties={}))

    def given(name: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
        if name == "logits":
            return logits
        if shape == logits.shape:
            return np.eye(logits.shape[1], dtype=np.float32)[labels]
        ones = np.ones(shape, np.float32)
        return ones if kind == "f" else (ones.T * labels).T

    feed = {value.name: given(value.name, value.shape, value.dtype.kind) for value in graph.inputs}
    return float(evaluate(graph, feed)[0]["loss"])


def check_optimizer(c: Compilation, head: ClassHead, room: Room) -> None:
    """Raise UsageError where the update of known classes depends on free ones, or soon brings these near."""
    weights = {p.name: p.model_value for p in c.graphs.model.weights().values()}
    if any(map(is_described, weights.values())):
        return
    rng, axes = np.random.default_rng(0), {head.kernel: head.axis, head.bias: 0}
    gradients = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in weights.items()}
    for name, axis in axes.items():
        np.moveaxis(gradients[name], axis, 0)[room.own :] = 0

    def known(name: str, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, axes[name], 0)[: room.own] if name in axes else array

    begun, alone = ({name: np.array(array, np.float32) for name, array in weights.items()} for _ in range(2))
    begun[head.bias][room.own :], alone[head.bias][room.own :] = FREE, 0
    after, wanted = _stepped(c, begun, gradients), _stepped(c, alone, gradients)
    for name in weights:
        step, right = (known(name, made[name] - begun[name]) for made in (after, wanted))
        if not np.allclose(step, right, rtol=0, atol=_ROUNDED_STEP * float(np.abs(right).max(initial=0))):
            raise UsageError(
                f"classes='{room}': the optimizer moves {name} by the size of all of a tensor, or of all gradients and "
                f"decays, where {head.bias} holds {FREE:,.0f} for classes that are not there yet: the others "
                "would take other steps than without room. Take one that looks at single numbers, as adam or sgd, "
                "and clip gradients before weights decay",
                page="optimizers",
            )
    kept = float(after[head.bias][room.own :].max()) / FREE
    decay = 1 - max(kept, 0.0) ** (1 / _LOOKED_AT)
    if decay * _STEPS > np.log(_NEARER):
        raise UsageError(
            f"classes='{room}': the optimizer lets {head.bias} decay by {decay:.1g} of itself in a step, also where it "
            f"holds {FREE:,.0f} for classes that are not there yet: after some {np.log(_NEARER) / decay:,.0f} steps "
            "they would have a share in the softmax. Leave biases out of weight decay, as by mask= of optax.adamw, or "
            "let less decay",
            page="optimizers",
        )


def _stepped(
    c: Compilation, weights: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Return weights after some steps of the optimizer, each along the same gradients."""
    from converter.training.optim.trace import trace_optimizer

    rule, after = trace_optimizer(c.optimizer, weights), dict(weights)
    slots, rate = dict(rule.slots), np.float32(1 if c.learning_rate is None else c.learning_rate)
    for _ in range(_LOOKED_AT):
        feed = {**slots, LOSS: np.ones((), np.float32), **{GRADIENT + name: gradients[name] for name in after}}
        feed |= {PARAMETER + name: array for name, array in after.items()}
        made, _ = evaluate(rule.graph, {value.name: feed[value.name] for value in rule.graph.inputs})
        after = {name: array + rate * made[UPDATE + name] for name, array in after.items()}
        if rule.finish is not None:
            feed = made | {PARAMETER + name: array for name, array in after.items()}
            made |= evaluate(rule.finish, {value.name: feed[value.name] for value in rule.finish.inputs})[0]
            after = {name: made.get(PARAMETER + name, array) for name, array in after.items()}
        slots = {name: made[name] for name in slots}
    return after
