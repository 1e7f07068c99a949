"""Losses of PyTorch: modules of `torch.nn` with their options, and functions of tensors, as losses of a step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import CellType
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

from converter.ir import INT32, Builder, Graph, TensorType, Value
from converter.passes.idioms import with_idioms
from converter.program.manifest import TARGET, TargetLabels
from converter.support.errors import UsageError
from converter.support.libraries import is_defined_in, loaded
from converter.training.losses import Loss, named_loss
from converter.training.losses.own_loss import target_types
from jax_frontend import trace_function
from jax_frontend.unsupported import Problems
from torch_frontend.exporting import lowered, quiet
from torch_frontend.findings import Findings
from torch_frontend.guards import guarded
from torch_frontend.interpreter import RULES, Interpreter
from torch_frontend.program import user_inputs, user_outputs
from torch_frontend.writes import check_writes

#: What PyTorch leaves out where nothing else is said; few labels of pictures have it, those of words do.
_IGNORED = -100
#: Losses whose targets are classes along the second axis of the output; of pairs of outputs; of none.
_OF_CLASSES = ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")
_OF_PAIRS = ("CosineEmbeddingLoss", "MarginRankingLoss")
_OF_OUTPUTS = ("TripletMarginLoss", "TripletMarginWithDistanceLoss")
#: Functions that take a mean where nothing else is said, and the modules that do the same.
_MODULES: dict[Any, Callable[[], torch.nn.Module]] = {
    functional.binary_cross_entropy: torch.nn.BCELoss,
    functional.binary_cross_entropy_with_logits: torch.nn.BCEWithLogitsLoss,
    functional.cosine_embedding_loss: torch.nn.CosineEmbeddingLoss,
    functional.cross_entropy: torch.nn.CrossEntropyLoss,
    functional.hinge_embedding_loss: torch.nn.HingeEmbeddingLoss,
    functional.huber_loss: torch.nn.HuberLoss,
    functional.kl_div: torch.nn.KLDivLoss,
    functional.l1_loss: torch.nn.L1Loss,
    functional.margin_ranking_loss: torch.nn.MarginRankingLoss,
    functional.mse_loss: torch.nn.MSELoss,
    functional.multi_margin_loss: torch.nn.MultiMarginLoss,
    functional.multilabel_soft_margin_loss: torch.nn.MultiLabelSoftMarginLoss,
    functional.nll_loss: torch.nn.NLLLoss,
    functional.poisson_nll_loss: torch.nn.PoissonNLLLoss,
    functional.smooth_l1_loss: torch.nn.SmoothL1Loss,
    functional.soft_margin_loss: torch.nn.SoftMarginLoss,
    functional.triplet_margin_loss: torch.nn.TripletMarginLoss,
}
_ADVICE = "Write it as a function (outputs, targets) of tensors that gives the loss of each row"


def is_loss(candidate: Any) -> bool:
    """Return whether something is a loss of PyTorch: a module, a function of torch, or one that calls these."""
    if isinstance(candidate, torch.nn.Module):
        return True
    if is_defined_in(candidate, torch):
        return True
    return any(_is_of_torch(value) for value in _named(candidate, set()))


def _named(function: Any, seen: set[Any]) -> Iterator[Any]:
    """All that the code of a function names, and that of the functions that it names."""
    if not inspect.isfunction(function) or function in seen:
        return
    seen.add(function)
    known = function.__globals__
    closed = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    for value in [*(known[name] for name in function.__code__.co_names if name in known), *closed]:
        yield value
        yield from _named(value, seen)


def _is_of_torch(value: Any) -> bool:
    kind = getattr(value, "__self__", value)  # of the method `apply` of one
    if isinstance(kind, type) and issubclass(kind, torch.autograd.Function | torch.nn.Module):
        return True
    if inspect.ismodule(value):
        return loaded(value.__name__.partition(".")[0]) is torch
    return is_defined_in(value if getattr(value, "__module__", None) else type(value), torch)


def loss_of(loss: Any, outputs: Mapping[str, Value], targets: Any = None) -> Loss:
    """Return what a loss of PyTorch computes.

    Args:
        loss: a module of `torch.nn`, or a function of outputs and targets.
        outputs: the model's outputs by name.
        targets: what the person says of y; None: as the loss takes it.

    Raises:
        UsageError: it cannot be traced, or gives no number for each row.
    """
    loss = _MODULES[loss]() if inspect.isroutine(loss) and loss in _MODULES else loss
    types = [value.type for value in outputs.values()]
    y = _usual_targets(loss, types[0]) if targets is None else _said(target_types(targets, types[0].shape[:1]))
    if not isinstance(loss, torch.nn.Module):
        return _traced(loss, _name(loss), types, y, ())
    return _of_module(loss, types, y)


def _said(targets: Any) -> dict[str, TensorType]:
    """What the person says of y, by the names of the inputs."""
    if isinstance(targets, tuple):
        targets = {str(i): kind for i, kind in enumerate(targets)}
    if isinstance(targets, dict):
        return {f"{TARGET}/{name}": kind for name, kind in targets.items()}
    return {TARGET: targets}


def _of_module(loss: Any, types: list[TensorType], y: dict[str, TensorType]) -> Loss:
    kind, reduction = type(loss).__name__, getattr(loss, "reduction", "mean")
    if trained := [name for name, p in loss.named_parameters() if p.requires_grad]:
        raise UsageError(
            f"the loss {kind} has parameters of its own ({', '.join(trained)}), which a step would not train: let the "
            "module have them and give what the loss needs of them",
            page="losses",
        )
    if not is_defined_in(type(loss), torch):
        return _traced(loss, kind, types, y, ())
    if reduction == "none":
        raise UsageError(
            f"the loss {kind} has reduction='none': a step takes the mean ('mean') or the sum ('sum') of it",
            page="losses",
        )
    known = _known(loss, kind, types, y)
    if known is not None:
        return replace(known, summed=reduction == "sum")
    alone = copy.deepcopy(loss)
    if hasattr(alone, "reduction"):
        alone.reduction = "none"
    axes = tuple(range(1, len(types[0].shape))) if reduction == "batchmean" else ()
    made = _traced(alone, kind, types, y, axes)
    if reduction == "sum":
        made = _summed(made, types[0])
    return _by_class(made, loss, types[0], y) if kind in _OF_CLASSES[:2] else made


def _known(loss: Any, kind: str, types: list[TensorType], y: dict[str, TensorType]) -> Loss | None:
    """A loss that has a name here, which counts right answers; None for all others."""
    if len(types) != 1 or list(y) != [TARGET]:
        return None
    output, target = types[0], y[TARGET]
    plain = getattr(loss, "weight", None) is None and getattr(loss, "pos_weight", None) is None
    if kind == "CrossEntropyLoss" and plain and len(output.shape) == 2:
        smoothing = {"label_smoothing": loss.label_smoothing} if loss.label_smoothing else {}
        if target == output:
            return replace(named_loss("categorical_crossentropy", **smoothing), needs_logits=True)
        ignored = {} if loss.ignore_index == _IGNORED else {"ignore": loss.ignore_index}
        return replace(named_loss("sparse_categorical_crossentropy", **smoothing, **ignored), needs_logits=True)
    if target != output or loss.reduction == "sum":  # which is of all its numbers, here of the means of places
        return None
    if kind == "BCEWithLogitsLoss" and plain:
        return replace(named_loss("binary_crossentropy"), needs_logits=True)
    if kind == "MSELoss":
        return named_loss("mse")
    return named_loss("huber", delta=loss.delta) if kind == "HuberLoss" else None


def _usual_targets(loss: Any, output: TensorType) -> dict[str, TensorType]:
    """What y is where nothing is said: classes, numbers of rows, or like the output."""
    kind = type(loss).__name__
    if kind in _OF_OUTPUTS:
        return {}
    if kind in _OF_CLASSES:
        return {TARGET: TensorType((*output.shape[:1], *output.shape[2:]), INT32)}
    return {TARGET: TensorType(output.shape[:1]) if kind in _OF_PAIRS else output}


def _traced(
    loss: Callable[..., Any], name: str, types: list[TensorType], y: dict[str, TensorType], summed: tuple[int, ...]
) -> Loss:
    """A loss by its own code, of each row or of a row and place; `summed` are axes that it adds up."""
    graph = _graph_of(loss, name, [*types, *y.values()], summed)
    (result,) = graph.outputs.values()
    if result.shape[:1] != types[0].shape[:1]:
        raise UsageError(
            f"the loss {name} must return one number for each row, shape [batch]; it returns {list(result.shape)}. "
            "Leave out the mean over the rows (reduction='none'), which the step takes",
            page="losses",
        )

    def emit(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        (made,) = b.inline(graph, [*outputs, *targets]).values()
        return made

    return Loss(name, lambda outputs: dict(y), emit)


def _graph_of(loss: Callable[..., Any], name: str, types: Sequence[TensorType], summed: tuple[int, ...]) -> Graph:
    class Called(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return loss(*tensors)

    def sample(type: TensorType) -> torch.Tensor:
        return torch.zeros(type.shape, dtype=torch.int64 if type.dtype.kind == "i" else torch.float32)

    try:
        with quiet(), guarded() as guard:
            exported = torch.export.export(Called(), tuple(map(sample, types)), strict=False)
        guard.check()
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise UsageError(f"the loss {name} cannot be traced: {said}. {_ADVICE}", page="losses") from error
    problems = Problems()
    check_writes(exported, problems)
    problems.check()
    program = lowered(exported, list(RULES))
    interpreter = Interpreter(program, Findings())
    signature = program.graph_signature
    held = {**program.constants, **program.state_dict}
    places = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    known = {place: held[target].detach() for place, target in places.items()}
    known |= {p: program.constants[t] for p, t in signature.inputs_to_lifted_tensor_constants.items()}
    inputs = user_inputs(program)

    def function(*arrays: Any) -> Any:
        made = interpreter.run({**known, **{n.name: a for n, a in zip(inputs, arrays, strict=True)}})
        result = user_outputs(program, made)
        return jnp.sum(result, summed) if summed else result

    graph = trace_function(function, list(types))
    interpreter.problems.check()
    return with_idioms(graph)


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


def _by_class(loss: Loss, module: Any, output: TensorType, y: dict[str, TensorType]) -> Loss:
    """Cross entropy of classes: the mean is by the weights of the classes, without the labels to ignore."""
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
    apart = trace_function(lambda values, mark: values / jnp.where(mark > 0, mark, 1.0), [TensorType(target.shape)] * 2)
    emit = loss.per_example

    def places(b: Builder, labels: Value) -> Value:
        return b.inline(marks, [labels])["output"]

    def per_example(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        values = emit(b, outputs, targets)
        return b.inline(apart, [values, places(b, targets[0])])["output"] if given is not None else values

    labels = {TARGET: TargetLabels(classes, False, ignored)}
    if loss.summed:
        return replace(loss, labels=lambda outputs: labels)
    return replace(loss, per_example=per_example, places=places, labels=lambda outputs: labels)


def _name(loss: Any) -> str:
    name = getattr(loss, "__name__", type(loss).__name__)
    return "loss" if name == "<lambda>" else str(name)
