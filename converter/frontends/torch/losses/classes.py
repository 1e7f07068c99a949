"""Cross entropies of classes in PyTorch: means by the weights of the classes, without the labels to ignore."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from converter.ir import Builder, TensorType, Value
from converter.program.manifest import TARGET, TargetLabels
from converter.training.losses import Loss, named_loss
from jax_frontend import trace_function

#: The label that PyTorch leaves out where nothing else is said.
IGNORED = -100


def cross_entropy(module: Any, of_shares: bool) -> Loss:
    """Return `CrossEntropyLoss` of rows of classes without weights, as the loss that has a name here.

    Args:
        module: the loss.
        of_shares: whether the targets are shares of the classes, of which none are left out.
    """
    smoothing = {"label_smoothing": module.label_smoothing} if module.label_smoothing else {}
    if of_shares:
        return replace(named_loss("categorical_crossentropy", **smoothing), links_again=True)
    name = "sparse_categorical_crossentropy"
    made = replace(named_loss(name, **smoothing, ignore=module.ignore_index), links_again=True)
    if module.ignore_index != IGNORED:
        return made
    return replace(made, in_parts=replace(named_loss(name, **smoothing), links_again=True))


def by_class(loss: Loss, module: Any, output: TensorType, y: dict[str, TensorType]) -> Loss:
    """Return a cross entropy of classes as a mean by the weights of these, without the labels to ignore.

    Args:
        loss: by the code of the module, of each row and place.
        module: `CrossEntropyLoss` or `NLLLoss`.
        output: type of the output, the classes along the second axis.
        y: type of the targets by name; shares of the classes are left as they are.
    """
    (target,) = y.values()
    classes, ignored = output.shape[1], int(module.ignore_index)
    if target.dtype.kind == "f":
        return loss
    given = getattr(module, "weight", None)
    weights = np.ones(classes, np.float32) if given is None else given.detach().numpy().astype(np.float32)

    def weight_of(labels: Any) -> Any:
        known = jnp.take(weights, labels, mode="clip") if given is not None else jnp.ones(labels.shape, jnp.float32)
        return jnp.where(labels == ignored, 0.0, known)

    marks = trace_function(weight_of, [target])
    separate = trace_function(
        lambda values, mark: values / jnp.where(mark > 0, mark, 1.0), [TensorType(target.shape)] * 2
    )
    emit = loss.per_example

    def places(b: Builder, labels: Value) -> Value:
        return b.inline(marks, [labels])["output"]

    def per_example(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        values = emit(b, outputs, targets)
        return b.inline(separate, [values, places(b, targets[0])])["output"] if given is not None else values

    labels = {TARGET: TargetLabels(classes, False, ignored)}
    if loss.summed:
        return replace(loss, labels=lambda outputs: labels)
    made = replace(loss, per_example=per_example, places=places, labels=lambda outputs: labels)
    if given is not None or ignored != IGNORED:
        return made
    all_labels = {TARGET: TargetLabels(classes, False)}
    return replace(made, in_parts=replace(loss, labels=lambda outputs: all_labels))
