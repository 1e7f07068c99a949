"""The stages between a model and its file: each takes a Graph and returns a Graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from converter.driver.models import Source, import_loss
from converter.driver.requests import Request, check_batch_norm, check_fisher
from converter.ir import Graph, is_described
from converter.ir.batch_norm import BatchNorm
from converter.ir.random_numbers import call_counter
from converter.passes import (
    absorb_layout,
    eliminate_dead_code,
    fold_affine,
    fold_constants,
    fold_numbers,
    merge_common_subexpressions,
    narrow,
    outputs_first,
    simplify,
    simplify_loops,
)
from converter.program.manifest import INFER, rows_to_infer
from converter.support.errors import NumericError, UnsupportedError, UsageError
from converter.support.notes import Note, raised_notes
from converter.tflite.backend import beside_engine, in_order, raised, to_builtins
from converter.tflite.lowering.forms import FormChoice
from converter.tflite.lowering.weight_layout import better_turned
from converter.tflite.prepare import absorb_projections, attend_in_blocks
from converter.tflite.prepare.tiling import tile_batch
from converter.tflite.targets import Target
from converter.training.augment import augmentation, augmentation_note
from converter.training.batch_norm import (
    batch_norm_notes,
    by_batch,
    following,
    in_training,
    statistics_of,
    with_inputs_apart,
    with_statistics,
    without_masks,
)
from converter.training.constraints import constrained, constraint_notes
from converter.training.dropout import dropout_notes, dropouts, without_dropout
from converter.training.fisher import fisher, without_probes
from converter.training.losses import JointLoss, Loss, attach_loss
from converter.training.mixing import check_parts, mixing_notes, whole_batches
from converter.training.optim import OptimizerProgram
from converter.training.schemes import (
    Adapter,
    Plain,
    Row,
    adapt,
    cut_frozen_prefix,
    has_frozen_prefix,
    join,
    plain,
    select,
)
from converter.training.step import StepForm, with_dropout

if TYPE_CHECKING:
    from converter.driver.int8 import QuantizationReport


class Compiled(NamedTuple):
    """What the stages make; `mixing` says by signature where rows of a batch influence each other."""

    signatures: dict[str, Graph]
    rows: list[Row]
    loss: Loss | JointLoss
    mixing: dict[str, str]
    notes: list[Note]
    quantization: QuantizationReport | None
    without_adapters: Plain | None
    adapters: list[Adapter]
    rule: OptimizerProgram


def compile_signatures(
    source: Source,
    loss: Any,
    optimizer: Any,
    request: Request,
    report: list[FormChoice],
    others: Mapping[int, Graph],
    several_rows: Graph | None,
) -> Compiled:
    """The stages between import and emission.

    Args:
        source: the model.
        loss: as for `build`, known.
        optimizer: an optax.GradientTransformation.
        request: all else that was asked for.
        report: takes the forms of the first signature, which is the training step.
        others: the model's graph for other numbers of rows, for which `infer` is asked for too.
        several_rows: where a step's rows come in several calls, the model's graph for more than one row.
    """
    from converter.training.optim.notes import optimizer_notes

    target, signatures, frozen = request.target, request.signatures, request.frozen
    dropping = dropouts(source.graph)
    traced = source.graph if request.dropout == "train" else without_dropout(source.graph)
    trainable = source.batch_norms if request.batch_norm == "train" else ()
    forward = with_inputs_apart(traced, trainable, canonicalize)
    resolved = request.scheme.resolve(absorb_layout(forward), source.blocks)
    by_batches: list[BatchNorm] = []
    if request.batch_norm == "train":
        by_batches = in_training(
            forward, source.batch_norms, {row.parameter for row in resolved if row.fraction or row.adapter}
        )
    forward = without_masks(forward, by_batches)
    adapted, rows, adapters = adapt(forward, resolved)
    if request.batch_norm == "train":
        check_batch_norm(request, source.batch_norms, by_batches, bool(adapters))
    # The plain model is exported, too, and keeps what trains beside adapters as a program without them would.
    turned = better_turned(specialize(select(absorb_layout(forward), resolved)), target) if adapters else None
    selected, rule = with_optimizer(with_statistics(adapted, by_batches), rows, optimizer, target, turned)
    trained = {p.name: p.model_value.shape for p in selected.weights().values()}
    said = optimizer_notes(optimizer, rule, trained)
    rule = constrained(rule, source.constraints, selected.weights())
    probed, normalized = statistics_of(selected, by_batches)
    selected = without_probes(probed)
    counter, count = call_counter()
    step = StepForm(
        request.step,
        in_parts=request.accumulates,
        scale=float(request.loss_scale),
        trained=lambda graph: by_batch(graph, by_batches, normalized),
        averaged=lambda graph: following(graph, by_batches),
        rate_first=target.is_cpu,
    )
    step = with_dropout(step, counter, count) if dropouts(selected) else step
    augmented: Graph | None = None  # what a step does to its inputs
    if request.augment is not None:
        augmented = canonicalize(augmentation(request.augment, selected.inputs, counter, count))
        step = replace(step, carried={**step.carried, counter: count})
    known = [p for p in selected.parameters.values() if not is_described(p.model_value)]
    broken = [p.name for p in known if not np.isfinite(p.view.of(p.model_value)).all()]
    if broken:
        raise NumericError(f"these weights hold NaN or infinity and cannot be trained: {', '.join(broken)}")
    if "features" in signatures and not has_frozen_prefix(selected):
        raise UsageError(
            "there are no features to keep: the first layer trains. Choose a scheme that freezes the first layers, or "
            "leave the signature `features` out.",
            page="arguments",
        )
    goal = replace(import_loss(loss, selected, request.targets, request.loss_weights), penalties=source.penalties)
    mixing = whole_batches(selected, goal, signatures, request.step, augmented)
    if several_rows is not None:
        _check_parts(several_rows, loss, request)
    check_fisher(request, any(p.kind == "choice" for p in selected.parameters.values()), mixing.get(request.step))
    front: Graph | None = None  # what all signatures begin with, lowered already
    behind, quantization = selected, None
    without = (
        plain(without_dropout(forward), resolved, adapters, rule.layout_invariant, turned or ())
        if adapters and "infer" in signatures
        else None
    )
    once = target.storing_once()  # for what others are given, or what is read off a convolution
    exported = None if without is None else to_builtins(without.graph, once)
    if frozen == "int8":
        from converter.driver.int8 import quantize, quantize_plain

        how_to = goal, request.calibration, selected.inputs[0].shape[0], target, partial(to_builtins, target=once)
        done = quantize(probed if "fisher" in signatures else selected, *how_to)
        front, probed, quantization = done.prefix, done.rest, done.report
        behind = without_probes(probed)
        exported = None if without is None else quantize_plain(without.graph, *how_to)
    tiled = partial(_for_cpu, target=target) if target.is_cpu else Graph.copy
    quiet = canonicalize(without_dropout(behind)) if dropouts(behind) else behind
    scored = attach_loss(tiled(quiet), goal)
    scored.outputs = {name: v for name, v in scored.outputs.items() if name not in quiet.outputs}
    graphs = step.graphs(tiled(behind), goal, rule)
    if "evaluate" in signatures:
        graphs["evaluate"] = eliminate_dead_code(scored)
    if "infer" in signatures:
        graphs["infer"] = quiet
    for many, graph in others.items():
        plainly = with_inputs_apart(without_dropout(graph), by_batches, canonicalize)
        other, _, _ = adapt(without_masks(plainly, by_batches), resolved)
        graphs[f"{INFER}{many}"] = like(selected, with_statistics(other, by_batches), rows, rule.layout_invariant)
    if "fisher" in signatures:
        graphs["fisher"] = fisher(canonicalize(without_dropout(probed)) if dropouts(probed) else probed, goal)
    first = next(iter(graphs))
    places = {name: once for name in graphs if name == "infer" or rows_to_infer(name)}
    if request.step == "gradients":
        places["apply"] = beside_engine(target)
    lowered = {
        n: to_builtins(graph, places.get(n, target), report if n == first else None) for n, graph in graphs.items()
    }
    if front is not None:
        lowered = {name: join(front, graph) for name, graph in lowered.items()}
    if augmented is not None:
        lowered[first] = join(to_builtins(augmented, target), lowered[first])
    if "features" in signatures:
        features, rest = cut_frozen_prefix(selected) if front is None else (front, behind)
        on_features = step.graphs_on_features(tiled(rest), goal, rule)
        steps = {name: to_builtins(graph, target) for name, graph in on_features.items()}
        if front is None:
            lowered["features"] = to_builtins(tiled(features), target)
        else:
            from converter.driver.int8 import kept_as_int8

            lowered["features"], widened = kept_as_int8(front)
            steps = {name: join(widened, graph) for name, graph in steps.items()}
        lowered |= steps
    if without is not None and exported is not None:
        without = replace(without, graph=in_order(exported, target))
    mixing |= {name: mixing["infer"] for name in graphs if rows_to_infer(name) and "infer" in mixing}
    return Compiled(
        {name: in_order(graph, target, request.recompute) for name, graph in lowered.items()},
        rows,
        goal,
        mixing,
        [
            *said,
            *batch_norm_notes(source.batch_norms, by_batches, request.batch_norm == "fixed"),
            *constraint_notes(source.constraints, selected.weights()),
            *dropout_notes(dropping, request.dropout == "train"),
            *([augmentation_note(request.augment)] if augmented is not None else []),
            *mixing_notes(mixing),
            *raised_notes(raised(scored, target)),
        ],
        quantization,
        without,
        adapters,
        rule,
    )


def _check_parts(model: Graph, loss: Any, request: Request) -> None:
    """Raises UsageError where rows of the model, its loss or what a step does to its inputs influence each other."""
    forward = canonicalize(model if request.dropout == "train" else without_dropout(model))
    augmented: Graph | None = None
    if request.augment is not None:
        augmented = canonicalize(augmentation(request.augment, forward.inputs, *call_counter()))
    check_parts(forward, import_loss(loss, forward, request.targets, request.loss_weights), augmented)


def with_optimizer(
    forward: Graph, rows: list[Row], optimizer: Any, target: Target, turned: Collection[str] | None = None
) -> tuple[Graph, OptimizerProgram]:
    """The graph in which only what trains is a parameter, and the update rule of these parameters.

    Weights are stored as their consumers read them, unless the optimizer looks at rows and columns.

    Args:
        forward: canonical.
        rows: the resolved scheme.
        optimizer: an optax.GradientTransformation.
        target: where it will run.
        turned: names of the matrices that are kept as [outputs, inputs]; None: those that are better so.
    """
    from converter.training.optim.trace import trace_optimizer

    for layout in (absorb_layout, Graph.copy):
        try:
            selected = specialize(select(layout(forward), rows))
        except UnsupportedError as error:
            if layout is absorb_layout:
                raise
            raise UnsupportedError(
                f"{error} The optimizer looks at rows and columns of weights, so they are kept as the model has them; "
                "any that looks at single numbers, as Adam, trains it in part.",
                error.sites,
                page="arguments",
            ) from None
        if layout is absorb_layout:
            selected = outputs_first(selected, better_turned(selected, target) if turned is None else turned)
        parameters = selected.weights().values()
        rule = trace_optimizer(
            optimizer, {p.name: p.model_value for p in parameters}, {p.name: p.view for p in parameters}
        )
        if rule.layout_invariant:
            break
    return selected, rule


def like(selected: Graph, forward: Graph, rows: list[Row], layout_invariant: bool) -> Graph:
    """The model for another number of rows, with the state of what was selected from it.

    Raises:
        UsageError: it keeps its weights in another form.
    """
    other = specialize(select((absorb_layout if layout_invariant else Graph.copy)(forward), rows))
    other = without_probes(other)
    turned = {p.name: p.viewed(("transpose", (1, 0))).view for p in other.parameters.values()}
    views = {p.name: p.view for p in selected.parameters.values()}
    other = outputs_first(other, {name for name, view in turned.items() if views.get(name) == view})
    other.outputs = {name: value for name, value in other.outputs.items() if name in selected.outputs}
    stored = {p.name: (v.type, p.view) for v, p in selected.parameters.items()}
    for value, parameter in other.parameters.items():
        if stored.get(parameter.name) != (value.type, parameter.view):
            rows_of_it = forward.inputs[0].shape[0]
            raise UsageError(
                f"infer_{rows_of_it}: for so many rows {parameter.name} is kept in another form: leave it out",
                page="arguments",
            )
    return eliminate_dead_code(other)


def _for_cpu(graph: Graph, target: Target) -> Graph:
    """The forward graph with early layers in parts of the batch, and attention by fewer products, where that pays."""
    return absorb_projections(attend_in_blocks(tile_batch(graph, target), target), target)


def canonicalize(graph: Graph) -> Graph:
    """One form of each thing: constants folded, neutral ops gone."""
    return simplify(fold_constants(simplify_loops(eliminate_dead_code(graph))))


def specialize(graph: Graph) -> Graph:
    """Uses that frozen weights are constants: folds them, scales and shifts into convolutions.

    What is read in part is computed in part, what is not read is dropped.
    """
    # Merging before folding: a shared weight behind the same scale is stored once.
    closed = simplify_loops(fold_constants(graph))
    folded = fold_constants(narrow(merge_common_subexpressions(fold_affine(closed))))
    return merge_common_subexpressions(fold_numbers(simplify(folded)))
