"""Losses of PyTorch: modules of `torch.nn` with their options, and functions of tensors, as losses of a step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax.numpy as jnp
import torch
from torch.nn import functional

from converter.frontends.torch.losses.calling import Convention, named_targets
from converter.frontends.torch.losses.classes import by_class, cross_entropy
from converter.frontends.torch.losses.graphs import own_loss, traced_loss
from converter.ir import INT32, Builder, Graph, TensorType, Value
from converter.program.manifest import TARGET
from converter.support.errors import UsageError
from converter.support.libraries import is_defined_in
from converter.training.losses import Loss, named_loss
from converter.training.losses.own_loss import target_types
from jax_frontend import trace_function

#: Losses whose targets are classes along the second axis of the output, and whose targets are a number of each row.
_OF_CLASSES = ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")
_OF_PAIRS = ("CosineEmbeddingLoss", "MarginRankingLoss")
#: Losses of several outputs: what these are, in the order of the loss' own arguments.
_SEVERAL: dict[str, tuple[str, ...]] = {
    "CosineEmbeddingLoss": ("x1", "x2"),
    "GaussianNLLLoss": ("mean", "variance"),
    "MarginRankingLoss": ("x1", "x2"),
    "TripletMarginLoss": ("anchor", "positive", "negative"),
    "TripletMarginWithDistanceLoss": ("anchor", "positive", "negative"),
}
#: Functions that take a mean where nothing else is said, and the modules that do the same.
_MODULES: dict[Any, Callable[..., torch.nn.Module]] = {
    functional.binary_cross_entropy: torch.nn.BCELoss,
    functional.binary_cross_entropy_with_logits: torch.nn.BCEWithLogitsLoss,
    functional.cosine_embedding_loss: torch.nn.CosineEmbeddingLoss,
    functional.cross_entropy: torch.nn.CrossEntropyLoss,
    functional.ctc_loss: torch.nn.CTCLoss,
    functional.gaussian_nll_loss: torch.nn.GaussianNLLLoss,
    functional.hinge_embedding_loss: torch.nn.HingeEmbeddingLoss,
    functional.huber_loss: torch.nn.HuberLoss,
    functional.kl_div: torch.nn.KLDivLoss,
    functional.l1_loss: torch.nn.L1Loss,
    functional.margin_ranking_loss: torch.nn.MarginRankingLoss,
    functional.mse_loss: torch.nn.MSELoss,
    functional.multi_margin_loss: torch.nn.MultiMarginLoss,
    functional.multilabel_margin_loss: torch.nn.MultiLabelMarginLoss,
    functional.multilabel_soft_margin_loss: torch.nn.MultiLabelSoftMarginLoss,
    functional.nll_loss: torch.nn.NLLLoss,
    functional.poisson_nll_loss: torch.nn.PoissonNLLLoss,
    functional.smooth_l1_loss: torch.nn.SmoothL1Loss,
    functional.soft_margin_loss: torch.nn.SoftMarginLoss,
    functional.triplet_margin_loss: torch.nn.TripletMarginLoss,
    functional.triplet_margin_with_distance_loss: torch.nn.TripletMarginWithDistanceLoss,
}
#: Losses that PyTorch broadcasts, with a warning or without, where output and y are [rows, 1] and [rows].
_BROADCAST = (
    *("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss", "KLDivLoss", "SoftMarginLoss"),
    "HingeEmbeddingLoss",
)
_BY_ROW = (
    "y may be [rows] or [rows, 1], and each number is compared with that of its own row; PyTorch compares each with "
    "each where one has an axis more, and warns"
)
_NO_CTC = (
    "the loss CTCLoss takes the lengths of each row apart, which a step is not given: use loss='ctc' with "
    "y=jax.ShapeDtypeStruct((1, 20), 'int32') on logits [rows, time, classes], the blank as class 0; shorter labels "
    "are filled with 0"
)


def loss_of(loss: Any, outputs: Mapping[str, Value], targets: Any = None) -> Loss:
    """Return what a loss of PyTorch computes.

    Args:
        loss: a module of `torch.nn`, or a function of outputs and targets.
        outputs: the model's outputs by name.
        targets: what the user says of y; None: as the loss takes it.

    Raises:
        UsageError: it cannot be traced, or gives no number for each row.
        UnsupportedError: it uses what cannot be compiled.
    """
    loss = _object_of(loss)
    types = {name: value.type for name, value in outputs.items()}
    first = next(iter(types.values()))
    said = None if targets is None else target_types(targets, first.shape[:1])
    if not isinstance(loss, torch.nn.Module):
        return own_loss(loss, types, said)
    kind = type(loss).__name__
    if trained := [name for name, p in loss.named_parameters() if p.requires_grad]:
        raise UsageError(
            f"the loss {kind} has parameters of its own ({', '.join(trained)}), which a step would not train: let the "
            "module have them and give what the loss needs of them",
            page="losses",
        )
    if not is_defined_in(type(loss), torch):
        return own_loss(loss, types, said)
    y = _usual_targets(loss, first) if said is None else named_targets(said, list(types))
    made = _of_module(loss, kind, types, y)
    column = first.shape[1:] in ((), (1,)) and kind in _BROADCAST and said is None
    return replace(made, note=_BY_ROW) if column else made


def _object_of(loss: Any) -> Any:
    """The module of torch.nn that a function of torch.nn.functional is, with its options; others as they are."""
    if isinstance(loss, type):
        raise UsageError(
            f"the loss is the class {loss.__name__}, not a loss: make one of it, {loss.__name__}()", page="losses"
        )
    options: dict[str, Any] = {}
    if isinstance(loss, partial) and not loss.args and inspect.isroutine(loss.func) and loss.func in _MODULES:
        loss, options = loss.func, dict(loss.keywords)
    return _MODULES[loss](**options) if inspect.isroutine(loss) and loss in _MODULES else loss


def _of_module(loss: Any, kind: str, types: Mapping[str, TensorType], y: dict[str, TensorType]) -> Loss:
    """A loss of torch.nn."""
    if kind == "CTCLoss":
        raise UsageError(_NO_CTC, page="losses")
    _check_outputs(kind, types)
    _check_weights(loss, kind, next(iter(types.values())))
    reduction = getattr(loss, "reduction", "mean")
    if reduction == "none":
        raise UsageError(
            f"the loss {kind} has reduction='none': a step takes the mean ('mean') or the sum ('sum') of it",
            page="losses",
        )
    first, named = next(iter(types.values())), _known(loss, kind, list(types.values()), y)
    if named is not None:
        return replace(named, summed=reduction == "sum", given_as=kind)
    alone = copy.deepcopy(loss)
    if hasattr(alone, "reduction"):
        alone.reduction = "none"
    axes = tuple(range(1, len(first.shape))) if reduction == "batchmean" else ()
    made = traced_loss(_in_order(alone, kind), kind, types, Convention("", list(types), y, False), axes)
    if reduction == "sum":
        made = _summed(made, first)
    return by_class(made, loss, first, y) if kind in _OF_CLASSES[:2] else made


def _check_outputs(kind: str, types: Mapping[str, TensorType]) -> None:
    """Raises UsageError where a loss of torch.nn compares another number of outputs than the module has."""
    wanted = _SEVERAL.get(kind, ("output",))
    if len(types) == len(wanted):
        return
    if len(wanted) == 1:
        names = ", ".join(f"{name!r}: ..." for name in types)
        raise UsageError(
            f"the loss {kind} takes one output and the module has {len(types)}: name one for each output, "
            f"loss={{{names}}} (None for an output that has none), keep one (outputs=), or pass a function "
            "(outputs, y) of all",
            page="losses",
        )
    raise UsageError(
        f"the loss {kind} takes {len(wanted)} outputs of the module ({', '.join(wanted)}), and it has {len(types)}: "
        "let it return a tuple of them in this order",
        page="losses",
    )


def _check_weights(loss: Any, kind: str, output: TensorType) -> None:
    """Raises UsageError where a loss of classes has weights of another number of them than the output."""
    weight = getattr(loss, "weight", None)
    if kind in _OF_CLASSES and weight is not None and len(output.shape) > 1 and len(weight) != output.shape[1]:
        raise UsageError(
            f"the loss {kind} has weights of {len(weight)} classes, and the output has {output.shape[1]}: give it one "
            "for each",
            page="losses",
        )


def of_classes(loss: Any, before: int, classes: int) -> Any:
    """Return a loss of so many classes: one with weights of `before` has these of the first ones, and 1 of others."""
    loss = _object_of(loss)
    weight = getattr(loss, "weight", None)
    if type(loss).__name__ not in _OF_CLASSES or weight is None or len(weight) != before:
        return loss
    made = copy.deepcopy(loss)
    made.weight = torch.cat([weight, weight.new_ones(classes)])[:classes]
    return made


def _in_order(loss: Any, kind: str) -> Any:
    """A loss of torch.nn as a function of the outputs followed by the targets."""
    return (lambda mean, variance, y: loss(mean, y, variance)) if kind == "GaussianNLLLoss" else loss


def _known(loss: Any, kind: str, types: list[TensorType], y: dict[str, TensorType]) -> Loss | None:
    """A loss that has a name here, which counts right answers; None for all others."""
    if len(types) != 1 or list(y) != [TARGET]:
        return None
    output, target = types[0], y[TARGET]
    plain = getattr(loss, "weight", None) is None and getattr(loss, "pos_weight", None) is None
    if kind == "CrossEntropyLoss" and plain and len(output.shape) == 2:
        return cross_entropy(loss, target == output)
    if target != output or loss.reduction == "sum":  # which is of all its numbers, here of the means of places
        return None
    if kind == "BCEWithLogitsLoss" and plain:
        return replace(named_loss("binary_crossentropy"), links_again=True)
    if kind == "MSELoss":
        return named_loss("mse")
    return named_loss("huber", delta=loss.delta) if kind == "HuberLoss" else None


def _usual_targets(loss: Any, output: TensorType) -> dict[str, TensorType]:
    """What y is where nothing is said: classes, numbers of rows, or like the output."""
    kind = type(loss).__name__
    if len(_SEVERAL.get(kind, ())) == 3:
        return {}
    if kind in _OF_CLASSES:
        return {TARGET: TensorType((*output.shape[:1], *output.shape[2:]), INT32)}
    if kind == "MultiLabelMarginLoss":
        return {TARGET: TensorType(output.shape, INT32)}
    return {TARGET: TensorType(output.shape[:1]) if kind in _OF_PAIRS else output}


def _summed(loss: Loss, output: TensorType) -> Loss:
    """A loss whose rows are sums over their places, in the form that a sum of rows is asked for."""
    places, emit = float(prod(output.shape[1:-1])), loss.per_example

    def per_example(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        values = emit(b, outputs, targets)
        return b.inline(_sum_of_rows(values.type, places), [values])["output"]

    return replace(loss, per_example=per_example, summed=True)


def _sum_of_rows(type: TensorType, places: float) -> Graph:
    axes = tuple(range(1, len(type.shape)))
    return trace_function(lambda v: (jnp.sum(v, axes) if axes else v) / places, [type])
