"""The way of the data, from a model to a training program: each stage takes a Graph and returns a Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from converter.batch_norm import (
    BatchNorm,
    batch_norm_notes,
    by_batch,
    check_alone,
    in_training,
    statistics_of,
    with_statistics,
)
from converter.budget import fit, parse_bytes
from converter.costs import costs
from converter.defaults import taken_over
from converter.dropout import dropout_notes, dropouts, without_dropout
from converter.errors import NumericError, UsageError
from converter.ir import Graph
from converter.losses import JointLoss, Loss, attach_loss, link_notes
from converter.mixing import mixing_notes, whole_batches
from converter.models import Source, import_loss, import_model, without_idle_outputs
from converter.notes import Note, grouped
from converter.optim import OptimizerProgram
from converter.order import in_order, to_builtins
from converter.passes import (
    absorb_layout,
    eliminate_dead_code,
    fold_affine,
    fold_constants,
    merge_common_subexpressions,
    simplify,
    simplify_loops,
)
from converter.program import Program
from converter.requests import check_choice, check_dropout, check_signatures, check_sizes, part_of_batch, whole_batch
from converter.sparse import (
    Plain,
    Row,
    UpdateScheme,
    adapt,
    cut_frozen_prefix,
    has_frozen_prefix,
    join,
    plain,
    select,
    update_scheme,
)
from converter.step import StepForm, with_dropout
from converter.targets import Target
from converter.targets import target as find_target
from converter.tflite.forms import FormChoice

if TYPE_CHECKING:
    from converter.quantize import QuantizationReport


def build(
    model: Any,
    loss: Any = None,
    optimizer: Any = None,
    update: str | Mapping[str, Any] | UpdateScheme = "full",
    batch: int = 8,
    micro_batch: int | None = None,
    target: str | Target = "litert-2",
    state: str = "variables",
    targets: Any = None,
    signatures: Sequence[str] = ("train", "evaluate", "infer"),
    labels: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    frozen: str = "float32",
    calibration: Any = None,
    memory_budget: str | int | None = None,
    batch_norm: str = "fixed",
    dropout: str = "off",
    check: bool = True,
    loss_weights: Any = None,
) -> Program:
    """Compiles a model into a training program.

    Args:
        model: a `keras.Model`, the path of a `.keras` file, or a `jax_frontend.Model`.
        loss: a name of `converter.losses.LOSSES` (those with "crossentropy" from logits: a softmax or sigmoid that the
            model ends in is joined with them), what `converter.losses.named_loss` gives for a name and options, or a
            JAX function `(outputs, targets) -> per-example loss [B]`, of several outputs and targets as `infer` gives
            and `train` takes them. For several outputs also a dict of these by output, or a list in their order, None
            for an output without one: the losses are added up. None: what a Keras model was compiled with, else
            `sparse_categorical_crossentropy`.
        optimizer: `sgd`, `momentum`, `adam`, `adamw`, `rmsprop`, `adagrad`, `lion`, or an optax.GradientTransformation;
            the constant learning rate that it was built with is the default of `session.train`'s. None: what a Keras
            model was compiled with, else `sgd`.
        update: a scheme's name, glob rules {"pattern": fraction, "bias" or a LoRA}, or an UpdateScheme.
        batch: rows of one training step.
        micro_batch: rows that are computed at once, a divisor of `batch`: the gradients of a step's micro-batches are
            added up (signatures `accumulate` and `apply` in place of `train`), which takes the memory of a micro-batch
            and one more copy of what trains. None: the whole batch at once.
        target: runtime, version and processor to choose forms for; see `converter.targets`.
        state: `variables` (the runtime keeps the weights) or `stateless` (they are inputs and outputs).
        targets: for a JAX loss whose y is not like the output: a `jax.ShapeDtypeStruct` of y (first axis the batch), a
            dict or tuple of them for several targets, for losses by output a dict by output.
        signatures: what the program offers: `train`, `evaluate`, `infer`, and `features`, which adds `features` (the
            frozen first layers) and `train_features` (a step on what they gave). The runtime packs the frozen weights
            again for each signature that uses them: leave out what is not called.
        labels: names of the classes in order, for the app; kept in the manifest.
        preprocessing: how the app makes an input, as JSON of the app's own; kept in the manifest.
        frozen: `float32`, or `int8` for frozen layers where the target gains by it: weights and activations around
            convolutions, weights in dense layers. What trains stays float32.
        calibration: for `int8`: x as for `TrainingSession.infer`, a hundred rows or so that look like those in use, or
            a pair (x, y), with which the accuracy before and after is measured. A warning says when more than one point
            is lost; `program.quantization` has the figures, and what became of each frozen layer.
        memory_budget: resident memory that a session may take, as `"64MiB"` or in bytes: the largest micro-batch is
            chosen that fits, of the given one it is checked; `program.tried` says what each costs.
        batch_norm: what batch normalization layers of a Keras model that are not frozen do in a step: `fixed` (they use
            their moving statistics and keep them) or `train` (those of the batch, which the moving ones follow).
        dropout: `train`: dropout layers drop in a step, by random masks that the program makes; `off`: they do nothing.
        check: run one step in the stock interpreter and refuse a program that is not right.
        loss_weights: for losses by output: what each is multiplied by, in the same form.

    Returns:
        The program; `program.write(path)` stores it.

    Raises:
        UsageError: an argument is wrong, or nothing fits the memory budget: the least that would is said.
        UnsupportedError: the model holds what cannot be compiled; all places are listed.
        NumericError: a weight is not finite, gets no gradient, or does not move.
    """
    batch = whole_batch(batch)
    part_of_batch(batch, micro_batch)
    build_one = partial(
        _build,
        model,
        loss=loss,
        loss_weights=loss_weights,
        optimizer=optimizer,
        batch=batch,
        target=target,
        state=state,
        targets=targets,
        signatures=signatures,
        labels=labels,
        preprocessing=preprocessing,
        frozen=frozen,
        calibration=calibration,
        batch_norm=batch_norm,
        dropout=dropout,
    )
    if memory_budget is None:
        program = build_one(update=update, micro_batch=micro_batch)
    else:
        program = fit(
            parse_bytes(memory_budget),
            [n for n in range(1, batch + 1) if not batch % n] if micro_batch is None else [micro_batch],
            lambda rows: build_one(update=update, micro_batch=rows),
            lambda scheme: build_one(update=scheme, micro_batch=1),
        )
    if program.quantization is not None:
        program.quantization.warn()
    if check:
        program.check()
    return program


def _build(
    model: Any,
    loss: Any,
    loss_weights: Any,
    optimizer: Any,
    update: Any,
    batch: int,
    micro_batch: int | None,
    target: str | Target,
    state: str,
    targets: Any,
    signatures: Sequence[str],
    labels: Sequence[str] | None,
    preprocessing: Mapping[str, Any] | None,
    frozen: str,
    calibration: Any,
    batch_norm: str,
    dropout: str,
) -> Program:
    """One program, not run yet; the arguments are those of `build`."""
    try:
        from converter.optim.rate import check_descends
        from converter.optim.trace import resolve
    except ModuleNotFoundError as error:  # a device that only runs programs
        raise UsageError(f"{error.name} is not installed: pip install 'pocketune[compiler]' to compile") from None

    rows_at_once = part_of_batch(batch, micro_batch)
    check_choice("state", state, ("variables", "stateless"))
    check_signatures(signatures)
    check_choice("frozen", frozen, ("float32", "int8"))
    check_choice("batch_norm", batch_norm, ("fixed", "train"))
    check_choice("dropout", dropout, ("off", "train"))
    if frozen == "float32" and calibration is not None:
        raise UsageError("calibration is for int8: add frozen='int8' (--frozen int8), or leave the samples out")
    chosen, scheme = find_target(target), update_scheme(update)
    if optimizer is not None:
        check_descends(resolve(optimizer))
    source = import_model(model, rows_at_once)
    check_sizes(source, rows_at_once)
    check_dropout(dropout, bool(dropouts(source.graph)), state == "stateless" and rows_at_once < batch, frozen)
    loss, rule, said = taken_over(source, loss, optimizer)
    source = without_idle_outputs(source, loss)
    step = StepForm(accumulates=rows_at_once < batch)
    report: list[FormChoice] = []
    done = compile_signatures(
        source,
        loss,
        rule.optimizer,
        scheme,
        chosen,
        step,
        targets,
        signatures,
        frozen,
        calibration,
        batch_norm,
        dropout,
        report,
        loss_weights,
    )
    program = Program.assemble(
        signatures=done.signatures,
        state=state,
        source=source,
        rows=done.rows,
        costs=costs(done.signatures, chosen, state, batch // rows_at_once),
        report=report,
        notes=grouped([*said, *link_notes(source.graph, done.loss), *done.notes, *source.notes]),
        mixing=done.mixing,
        without_adapters=done.without_adapters,
        scheme=scheme.name,
        loss=done.loss.stated,
        optimizer=rule.name,
        learning_rate=rule.learning_rate,
        target=chosen.name,
        batch=batch,
        micro_batch=rows_at_once,
        labels=None if labels is None else list(labels),
        preprocessing=None if preprocessing is None else dict(preprocessing),
        frozen=frozen,
    )
    return program if done.quantization is None else replace(program, quantization=done.quantization)


class Compiled(NamedTuple):
    """What the stages make; `mixing` says by signature where rows of a batch influence each other."""

    signatures: dict[str, Graph]
    rows: list[Row]
    loss: Loss | JointLoss
    mixing: dict[str, str]
    notes: list[Note]
    quantization: QuantizationReport | None
    without_adapters: Plain | None


def compile_signatures(
    source: Source,
    loss: Any,
    optimizer: Any,
    scheme: UpdateScheme,
    target: Target,
    step: StepForm,
    targets: Any = None,
    signatures: Sequence[str] = ("train",),
    frozen: str = "float32",
    calibration: Any = None,
    batch_norm: str = "fixed",
    dropout: str = "off",
    report: list[FormChoice] | None = None,
    loss_weights: Any = None,
) -> Compiled:
    """The stages between import and emission.

    `report` takes the forms of the first, which is the training step. Last comes what is exported of a model with
    adapters.
    """
    dropping = dropouts(source.graph)
    forward = canonicalize(source.graph if dropout == "train" else without_dropout(source.graph))
    resolved = scheme.resolve(absorb_layout(forward), source.blocks)
    adapted, rows, adapters = adapt(forward, resolved)
    by_batches: list[BatchNorm] = []
    if batch_norm == "train":
        by_batches = in_training(
            forward, source.batch_norms, {row.parameter for row in resolved if row.fraction or row.adapter}
        )
        check_alone(
            source.batch_norms, by_batches, step.accumulates, "features" in signatures, frozen == "int8", bool(adapters)
        )
    selected, rule = with_optimizer(with_statistics(adapted, by_batches), rows, optimizer)
    selected, normalized = statistics_of(selected, by_batches)
    step = replace(step, trained=lambda graph: by_batch(graph, by_batches, normalized))
    step = with_dropout(step) if dropouts(selected) else step
    broken = [p.name for p in selected.parameters.values() if not np.isfinite(p.value).all()]
    if broken:
        raise NumericError(f"these weights hold NaN or infinity and cannot be trained: {', '.join(broken)}")
    if "features" in signatures and not has_frozen_prefix(selected):
        raise UsageError(
            "there are no features to keep: the first layer trains. Choose a scheme that freezes the first layers, or "
            "leave the signature `features` out."
        )
    goal = replace(import_loss(loss, selected, targets, loss_weights), penalties=source.penalties)
    mixing = whole_batches(selected, goal, signatures, step.accumulates)
    front: Graph | None = None  # what all signatures begin with, lowered already
    behind, quantization = selected, None
    without = plain(forward, resolved, adapters, rule.layout_invariant) if adapters and "infer" in signatures else None
    exported = None if without is None else to_builtins(without.graph, target)
    if frozen == "int8":
        from converter.quantize import quantize, quantize_plain

        how_to = goal, calibration, selected.inputs[0].shape[0], target, partial(to_builtins, target=target)
        done = quantize(selected, *how_to)
        front, behind, quantization = done.prefix, done.rest, done.report
        exported = None if without is None else quantize_plain(without.graph, *how_to)
    scored = attach_loss(behind, goal)
    scored.outputs = {name: v for name, v in scored.outputs.items() if name not in behind.outputs}
    graphs = step.graphs(behind, goal, rule)
    if "evaluate" in signatures:
        graphs["evaluate"] = eliminate_dead_code(scored)
    if "infer" in signatures:
        graphs["infer"] = behind
    first = next(iter(graphs))
    lowered = {n: to_builtins(graph, target, report if n == first else None) for n, graph in graphs.items()}
    if front is not None:
        lowered = {name: join(front, graph) for name, graph in lowered.items()}
    if "features" in signatures:
        features, rest = cut_frozen_prefix(selected) if front is None else (front, behind)
        lowered["features"] = to_builtins(features, target) if front is None else features
        on_features = step.graphs_on_features(rest, goal, rule)
        lowered |= {name: to_builtins(graph, target) for name, graph in on_features.items()}
    if without is not None and exported is not None:
        without = replace(without, graph=in_order(exported, target))
    return Compiled(
        {name: in_order(graph, target) for name, graph in lowered.items()},
        rows,
        goal,
        mixing,
        [
            *batch_norm_notes(source.batch_norms, by_batches, batch_norm == "fixed"),
            *dropout_notes(dropping, dropout == "train"),
            *mixing_notes(mixing),
        ],
        quantization,
        without,
    )


def with_optimizer(forward: Graph, rows: list[Row], optimizer: Any) -> tuple[Graph, OptimizerProgram]:
    """The graph in which only what trains is a parameter, and the update rule of these parameters.

    Weights are stored as their consumers read them, unless the optimizer looks at rows and columns.
    """
    from converter.optim.trace import trace_optimizer

    for layout in (absorb_layout, Graph.copy):
        selected = specialize(select(layout(forward), rows))
        parameters = selected.weights().values()
        rule = trace_optimizer(
            optimizer, {p.name: p.model_value for p in parameters}, {p.name: p.view for p in parameters}
        )
        if rule.layout_invariant:
            break
    return selected, rule


def canonicalize(graph: Graph) -> Graph:
    """One form of each thing: constants folded, neutral ops gone."""
    return simplify(fold_constants(simplify_loops(eliminate_dead_code(graph))))


def specialize(graph: Graph) -> Graph:
    """Uses that frozen weights are constants: folds them, and scales and shifts into convolutions."""
    # Merging before folding: a shared weight behind the same scale is stored once.
    closed = simplify_loops(fold_constants(graph))
    folded = fold_constants(merge_common_subexpressions(fold_affine(closed)))
    return merge_common_subexpressions(simplify(folded))
