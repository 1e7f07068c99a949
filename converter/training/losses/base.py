"""Penalty for leaving the base: how far a model's probabilities are from those of the model as it was built.

KL(base || model) = sum(p log(p / q)), p by the weights of the build and q by those of the step. Its gradient of the
logits is q - p, so nothing of the base is kept for the backward pass but p.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from converter.ir import Builder, Node, Value, known_result, ops, reachable
from converter.training.losses.row_losses import masked_mean, mean_rows

if TYPE_CHECKING:
    from converter.training.losses.loss import Loss


def with_penalty(b: Builder, loss: Loss, values: Value, logits: Value, y: Value) -> Value:
    """Return the loss of rows, or of rows and places, with `loss.keep_base` times the divergence of the same.

    Args:
        b: builds the loss after the model.
        loss: has a link.
        values: what it gives, [B] or [B, ...].
        logits: what it reads, [B, ..., C], of a sigmoid [B, ...].
        y: its targets, which say what counts.
    """
    separate = b(ops.Mul(), _divergence(b, loss, logits), loss.keep_base)
    if loss.mask is not None:
        separate = masked_mean(b, separate, loss.mask(b, y))
    elif separate.shape != values.shape:
        separate = mean_rows(b, separate)
    return b(ops.Add(), values, separate)


def _divergence(b: Builder, loss: Loss, logits: Value) -> Value:
    """Return KL(base || model) of each place; of a sigmoid, of each number."""
    base = as_built(b, logits)
    of_classes = loss.link == "softmax"
    p = b(ops.Softmax() if of_classes else ops.Logistic(), base)
    cross = ops.SoftmaxCrossEntropy() if of_classes else ops.BinaryCrossEntropy()
    return b(ops.Sub(), b(cross, logits, p), b(cross, base, p))


def as_built(b: Builder, value: Value) -> Value:
    """Return a value as weights of the build make it, without dropout.

    What no trained weight takes part in is not computed again, and neither is what an adapter adds, which is nothing:
    of those products that are 0 whatever the other operand holds none is made.
    """
    needed, copies, zeros = reachable(b.graph, [value]), dict[Value, Value](), set[Value]()
    for trained, parameter in b.graph.parameters.items():
        if trained in needed:
            copies[trained] = b.constant(parameter.value, name=f"{parameter.name}/base")
            if parameter.kind == "weight" and not parameter.value.any():
                zeros.add(copies[trained])
    for node in list(b.graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        inputs = tuple(copies.get(v, v) for v in node.inputs)
        if isinstance(node.op, ops.Dropout | ops.InTraining):
            copies[node.output] = inputs[0]
        elif inputs != node.inputs:
            with b.at(node.origin):
                copies |= zip(node.outputs, _applied(b, node, inputs, zeros), strict=True)
    return copies.get(value, value)


def _applied(b: Builder, node: Node, inputs: Sequence[Value], zeros: set[Value]) -> tuple[Value, ...]:
    """Return what a node gives for other operands, of which some are known to be zero; adds what is zero then."""
    if isinstance(node.op, ops.CustomGradient):  # a rule of the backward pass, in which the base has no part
        return tuple(inputs[node.op.arguments + node.op.residuals :])
    if _is_zero(node, inputs, zeros):
        made = tuple(b.constant(np.broadcast_to(v.dtype.type(0), v.shape)) for v in node.outputs)
        zeros |= set(made)
        return made
    if isinstance(node.op, ops.Add | ops.Sub) and inputs[1] in zeros and inputs[0].type == node.output.type:
        return (inputs[0],)
    known = [b.graph.constants[v] for v in inputs if v in b.graph.constants]
    if node.op.folds and len(node.outputs) == 1 and len(known) == len(inputs):
        result = known_result(node.op, node.output.type, *known)
        if result is not None:
            return (b.constant(result, name=node.output.name),)
    return b.node(node.op, *inputs).outputs


def _is_zero(node: Node, inputs: Sequence[Value], zeros: Collection[Value]) -> bool:
    """Return whether a group of operands in which the op is linear is zero."""
    groups = ([v for k, v in enumerate(inputs) if k in group] for group in node.op.linear_in)
    return any(group and all(v in zeros for v in group) for group in groups)
