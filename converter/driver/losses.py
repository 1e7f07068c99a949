"""Loss import: from the user's argument to a loss for each output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import Any

from converter.frontends.source import Library, Source
from converter.frontends.table import loss_of
from converter.ir import Graph, Value, reachable
from converter.program.manifest import TARGET
from converter.support.errors import UsageError, nearest
from converter.support.notes import Note
from converter.training.losses import JointLoss, Loss, named_loss
from converter.training.losses.own_loss import ctc_loss, own_loss, target_types


def import_loss(
    loss: Any, forward: Graph, targets: Any = None, weights: Any = None, library: Library | None = None
) -> Loss | JointLoss:
    """Return what training minimizes: a loss, or one for each output.

    Args:
        loss: a name, a Loss, or the user's JAX function of all outputs and the targets; or a dict of these by output,
            or a list of them in the order of the outputs, None for an output without one.
        forward: the forward graph.
        targets: what one row of the targets is, for functions, else as the first output that these read; a dict or
            tuple of several; for losses by output a dict by output.
        weights: what each of the losses by output is multiplied by, in the same form.
        library: of the model: functions that name no library are of its tensors; None: of JAX's arrays.

    Raises:
        UsageError: an unknown name or output, or a function that does not return one number per example.
    """
    if isinstance(loss, JointLoss):
        return loss if weights is None else loss.weighed(_factors(weights, forward))
    if not isinstance(loss, Mapping | list | tuple):
        if weights is not None:
            raise UsageError("loss_weights is for losses by output: pass loss={'<output>': ...} as well", page="models")
        return _one_loss(loss, dict(forward.outputs), targets, library)
    parts = {name: part for name, part in _by_output("loss", loss, forward).items() if part is not None}
    if not parts:
        raise UsageError("loss: every output has None, there is nothing to train for", page="models")
    kinds = {} if targets is None else _by_output("y", targets, forward)
    joint = {
        name: _one_loss(part, {name: forward.outputs[name]}, kinds.get(name), library) for name, part in parts.items()
    }
    return JointLoss(joint) if weights is None else JointLoss(joint).weighed(_factors(weights, forward))


def scored_outputs(
    loss: Any, forward: Graph, targets: Any = None, weights: Any = None, library: Library | None = None
) -> list[str]:
    """Return names of the outputs that enter the loss; arguments and errors as of `import_loss`.

    An output whose loss is multiplied by 0 does not: it is evaluated, and trains nothing.
    """
    if len(forward.outputs) == 1:
        return list(forward.outputs)
    terms = [term for term in import_loss(loss, forward, targets, weights, library).terms(forward) if term.loss.factor]
    return list(dict.fromkeys(name for term in terms for name in term.depends_on(forward)))


def without_idle_outputs(source: Source, loss: Any, weights: Any = None) -> Source:
    """Return the model with what no loss that counts depends on kept fixed, and a note that says so.

    Args:
        source: the model.
        loss: as for `import_loss`.
        weights: as for `import_loss`.

    Raises:
        UsageError: each of the losses is multiplied by 0.
    """
    if isinstance(loss, JointLoss):
        factors = {name: part.factor for name, part in loss.parts.items()}
    elif isinstance(loss, Mapping | list | tuple):
        factors = {name: 1.0 for name, part in _by_output("loss", loss, source.graph).items() if part is not None}
    else:
        return source
    if weights is not None:
        given = _factors(weights, source.graph)
        factors = {name: given.get(name, 1.0) for name in factors}
    if factors and not any(factors.values()):
        raise UsageError("loss_weights: every loss is multiplied by 0, there is nothing to train for", page="models")
    graph = source.graph.copy()
    trained = [v for name, v in graph.outputs.items() if factors.get(name)]
    needed = reachable(graph, trained)
    idle = [p.name for v, p in graph.parameters.items() if p.trainable and v not in needed]
    if not idle or not trained:
        return source
    graph.parameters = {v: replace(p, idle=p.idle or v not in needed) for v, p in graph.parameters.items()}
    outputs = ", ".join(name for name in graph.outputs if not factors.get(name))
    why = "without a loss that counts nothing trains what it alone depends on"
    note = Note(outputs, "fixed", f"{why}: {', '.join(idle)}")
    return replace(source, graph=graph, notes=[*source.notes, note])


def _by_output(what: str, given: Any, forward: Graph) -> dict[str, Any]:
    """Return what was given for the outputs, by name, in their order."""
    names = list(forward.outputs)
    listed = ", ".join(names)
    if len(names) == 1:
        raise UsageError(
            f"{what}: the model has one output, pass what it is for that output alone, not {given!r}", page="models"
        )
    if isinstance(given, Mapping):
        if wrong := [name for name in given if name not in names]:
            raise UsageError(
                f"{what}: the model has no output {wrong[0]!r}.{nearest(str(wrong[0]), names)} It has {listed}.",
                page="models",
            )
        return {name: given[name] for name in names if name in given}
    if not isinstance(given, list | tuple) or len(given) != len(names):
        raise UsageError(
            f"{what}: the model has {len(names)} outputs, {listed}: pass a dict by these names", page="models"
        )
    return dict(zip(names, given, strict=True))


def _factors(weights: Any, forward: Graph) -> dict[str, float]:
    factors = _by_output("loss_weights", weights, forward)
    for name, factor in factors.items():
        if isinstance(factor, bool) or not isinstance(factor, Real) or not isfinite(factor):
            raise UsageError(f"loss_weights: that of {name} must be a number, got {factor!r}", page="models")
    return {name: float(factor) for name, factor in factors.items()}


def _one_loss(loss: Any, outputs: Mapping[str, Value], targets: Any, library: Library | None) -> Loss:
    if loss == "ctc":
        return ctc_loss(outputs, targets)
    if isinstance(loss, str | Loss):
        known = named_loss(loss) if isinstance(loss, str) else loss
        if targets is not None:
            _check_targets(known, outputs, targets)
        return known
    if (read := loss_of(loss, outputs, targets, library)) is not None:
        return read
    if not callable(loss):
        raise UsageError(
            f"loss must be a name or a function (outputs, targets) -> per-example loss, not {loss!r}", page="models"
        )
    return own_loss(loss, outputs, targets)


def _check_targets(loss: Loss, outputs: Mapping[str, Value], targets: Any) -> None:
    """Raises UsageError where a user says something else of y than what a named loss takes."""
    types = [v.type for v in outputs.values()]
    taken = loss.targets(types)
    said = target_types(targets, types[0].shape[:1])
    named = {f"{TARGET}/{name}": kind for name, kind in said.items()} if isinstance(said, dict) else {TARGET: said}
    if loss.outputs in (None, len(types)) and named != taken:
        wanted = ", ".join(f"{name} as {kind}" for name, kind in taken.items()) or "no y"
        raise UsageError(f"the loss {loss.title} takes {wanted}, which is not what y= says: leave y out", page="models")
