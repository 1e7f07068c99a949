"""From a model to a training program: request and model are read, the stages follow, the file comes last."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

from converter.driver.assemble import Plan, Program
from converter.driver.budget import check_room, fit
from converter.driver.compilation import Compilation
from converter.driver.defaults import taken_over
from converter.driver.fingerprint import identity_of
from converter.driver.int8.samples import any_samples
from converter.driver.models import Source, import_model, with_inputs, with_own_augmentation, without_idle_outputs
from converter.driver.pipeline import PIPELINE
from converter.driver.requests import (
    Request,
    check_dropout,
    check_labels,
    check_sizes,
    check_weights,
    part_of_batch,
    whole_batch,
)
from converter.ir import Graph
from converter.passes.manager import run
from converter.support.collecting import uncollected
from converter.support.extras import require
from converter.support.notes import Note, grouped
from converter.support.words import parse_bytes
from converter.tflite.costs.costs import costs
from converter.tflite.targets import Target
from converter.tflite.targets import target as find_target
from converter.training.dropout import dropouts
from converter.training.losses import link_notes
from converter.training.schemes import UpdateScheme, update_scheme

#: The model for so many rows.
Import = Callable[[int], Source]


def build(
    model: Any,
    loss: Any = None,
    optimizer: Any = None,
    update: str | Mapping[str, Any] | UpdateScheme = "full",
    batch: int = 8,
    micro_batch: int | None = None,
    target: str | Target = "litert-2",
    state: str | None = None,
    targets: Any = None,
    signatures: Sequence[str] = ("train", "evaluate", "infer"),
    labels: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    frozen: str = "float32",
    calibration: Any = None,
    memory_budget: str | int | None = None,
    batch_norm: str = "fixed",
    dropout: str = "off",
    augment: Any = None,
    check: bool = True,
    loss_weights: Any = None,
    loss_scale: float = 1.0,
    inputs: Sequence[Any] | None = None,
) -> Program:
    """Compiles a model into a training program.

    Args:
        model: a `keras.Model`, the path of a `.keras` file, a module of Flax or Equinox that holds its weights, or a
            `jax_frontend.Model`.
        loss: a name of `pocketune.losses.LOSSES` (those with "crossentropy" from logits: a softmax or sigmoid that the
            model ends in is joined with them), what `pocketune.losses.named_loss` gives for a name and options, or a
            JAX function `(outputs, targets) -> per-example loss [B]`, of several outputs and targets as `infer` gives
            and `train` takes them. For several outputs also a dict of these by output, or a list in their order, None
            for an output without one: the losses are added up. None: what a Keras model was compiled with, else
            `sparse_categorical_crossentropy`.
        optimizer: `sgd`, `momentum`, `adam`, `adamw`, `rmsprop`, `adagrad`, `lion`, or an optax.GradientTransformation;
            the constant learning rate that it was built with is the default of `session.train`'s (of a name alone a
            usual one, which is noted). None: what a Keras model was compiled with, else `sgd`.
        update: a scheme's name, glob rules {"pattern": fraction, "bias", a LoRA or Channels}, or an UpdateScheme.
        batch: rows of one training step.
        micro_batch: rows that are computed at once, a divisor of `batch`: the gradients of a step's micro-batches are
            added up (signatures `accumulate` and `apply` in place of `train`), which takes the memory of a micro-batch
            and one more copy of what trains. None: the whole batch at once.
        target: runtime, version and processor to choose forms for; see `converter.tflite.targets`. Several, separated
            by commas (`gpu,litert-2`): the program runs on all of them.
        state: `variables` (the runtime keeps the weights), `stateless` (they are inputs and outputs of a step), or
            `split`: a step is `gradients`, which an accelerator may run in float16, and `apply`, which updates in
            float32 on the CPU. None: what the target takes, `variables` on CPUs.
        targets: for a JAX loss whose y is not like the output: a `jax.ShapeDtypeStruct` of y (first axis the batch), a
            dict or tuple of them for several targets, for losses by output a dict by output.
        signatures: what the program offers: `train`, `evaluate`, `infer`, and `features`, which adds `features` (the
            frozen first layers) and `train_features` (a step on what they gave), and `fisher`, which
            `session.choose_channels` needs. `infer_1`, of any number of rows, is `infer` for so many: a session takes
            the one that fits best, so that one row does not cost what a batch does. The runtime packs the frozen
            weights again for each signature that uses them: leave out what is not called.
        labels: names of all classes in order, for the app; kept in the manifest.
        preprocessing: how the app makes an input, as JSON of the app's own; kept in the manifest.
        frozen: `float32`, or `int8` for frozen layers where the target gains by it: weights and activations around
            convolutions, weights in dense layers. What trains stays float32.
        calibration: for `int8`: x as for `TrainingSession.infer`, a hundred rows or so that look like those in use, or
            a pair (x, y), with which the accuracy before and after is measured. A warning says when more than one point
            is lost; `program.quantization` has the figures, and what became of each frozen layer.
        memory_budget: resident memory that a session may take, as `"64MiB"` or in bytes: the largest micro-batch is
            chosen that fits, of the given one it is checked; where none does, most of the forward pass is computed
            again in the backward pass, which keeps less of it. `program.tried` says what each costs. No filter is
            stored twice, which some convolutions are quicker with.
        batch_norm: what batch normalization layers of a Keras model that are not frozen do in a step: `fixed` (they use
            their moving statistics and keep them) or `train` (those of the batch, which the moving ones follow).
        dropout: `train`: dropout and noise layers act in a step, by random numbers that the program makes; `off`: not.
        augment: a JAX function `(x, key) -> x` that a step applies to its inputs first, of several a tuple or a dict by
            name; `evaluate` and `infer` take them as they are. It draws with `jax.random` and the key: each step has
            random numbers of its own, which the program makes. `keras`: random layers that a Keras model begins with.
        check: run one step in the stock interpreter and refuse a program that is not right.
        loss_weights: for losses by output: what each is multiplied by, in the same form.
        loss_scale: for `split`, a power of two: what gradients are multiplied by in `gradients` and divided by in
            `apply`, where an engine that rounds to float16 would lose small ones (more than 1) or cut large ones off.
        inputs: for a module, and for a Keras model that leaves axes open, shape and dtype of each input: a list of
            `jax.ShapeDtypeStruct` or arrays, the first axis the batch.

    Returns:
        The program; `program.write(path)` stores it.

    Raises:
        UsageError: an argument is wrong, or nothing fits the memory budget: the least that would is said.
        UnsupportedError: the model holds what cannot be compiled; all places are listed.
        NumericError: a weight is not finite, gets no gradient, or does not move.
    """
    planned = plan(
        with_inputs(model, inputs),
        update,
        batch,
        micro_batch,
        target,
        memory_budget,
        needs_weights=True,
        loss=loss,
        loss_weights=loss_weights,
        targets=targets,
        optimizer=optimizer,
        state=state,
        signatures=signatures,
        labels=labels,
        preprocessing=preprocessing,
        frozen=frozen,
        calibration=calibration,
        batch_norm=batch_norm,
        dropout=dropout,
        augment=augment,
        loss_scale=loss_scale,
    )
    with uncollected():
        program = replace(planned.assemble(), tried=planned.tried)
    if program.quantization is not None:
        program.quantization.warn()
    if check:
        program.check()
    return program


def plan(
    model: Any,
    update: str | Mapping[str, Any] | UpdateScheme = "full",
    batch: int = 8,
    micro_batch: int | None = None,
    target: str | Target = "litert-2",
    memory_budget: str | int | None = None,
    needs_weights: bool = False,
    state: str | None = None,
    **options: Any,
) -> Plan:
    """All that `build` does before a file is made: nothing is run, and shapes are enough of the weights.

    Args:
        model: as for `build`, or a `jax_frontend.Model` whose parameters are jax.ShapeDtypeStruct.
        update: as for `build`.
        batch: as for `build`.
        micro_batch: as for `build`.
        target: as for `build`.
        memory_budget: as for `build`.
        needs_weights: refuse a model of shapes alone.
        state: as for `build`.
        **options: the other arguments of `build`, except `check`.

    Raises:
        UsageError, UnsupportedError, NumericError: as `build`.
    """
    batch, found = whole_batch(batch), find_target(target)
    options = with_own_augmentation(model, options)
    request = Request(
        scheme=update_scheme(update),
        batch=batch,
        micro_batch=part_of_batch(batch, micro_batch),
        target=found if memory_budget is None else found.storing_once(),
        state=found.state if state is None else state,
        **options,
    )
    require("compiler", "compiling a model")
    if memory_budget is None:
        return _plan(partial(import_model, model), request, needs_weights)
    budget, imported = parse_bytes(memory_budget), cache(partial(import_model, model))
    check_room(budget, imported(request.micro_batch).graph)
    return fit(
        budget,
        [n for n in range(1, batch + 1) if not batch % n] if micro_batch is None else [micro_batch],
        lambda rows, again: _plan(imported, replace(request, micro_batch=rows, recompute=again), needs_weights),
        lambda scheme, frozen: _other(imported, request, scheme, frozen),
    )


def _without(notes: Sequence[Note], augment: Any) -> list[Note]:
    """The notes but those on layers that are left out of the model, and that the augmentation is made of."""
    layers = getattr(augment, "layers", ())
    return [note for note in notes if note.status != "left out" or note.subject not in layers]


def _other(imported: Import, request: Request, scheme: str, frozen: str) -> Plan:
    """What a named scheme comes to with micro-batches of one row; int8, whatever the samples are, takes the same."""
    from converter.driver.int8 import QuantizationWarning

    samples = request.calibration if frozen == "int8" else None
    if frozen == "int8" and samples is None:
        samples = any_samples(imported(1).graph)
    asked = replace(request, scheme=update_scheme(scheme), micro_batch=1, frozen=frozen, calibration=samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        return _plan(imported, asked, needs_weights=False)


@uncollected()
def _plan(imported: Import, request: Request, needs_weights: bool) -> Plan:
    """What one request comes to."""
    from converter.training.optim.named import resolve
    from converter.training.optim.rate import check_descends

    if request.optimizer is not None:
        check_descends(resolve(request.optimizer))
    source = imported(request.micro_batch)
    check_sizes(source, request.micro_batch)
    if needs_weights or request.frozen == "int8":
        check_weights(source)
    check_dropout(request, bool(dropouts(source.graph)))
    loss, rule, said = taken_over(source, request.loss, request.optimizer)
    source = without_idle_outputs(source, loss)
    check_labels(request.labels, source)
    several_rows: Graph | None = None
    if request.accumulates:  # of one row nothing can be seen of how rows influence each other
        several_rows = source.graph if request.micro_batch > 1 else imported(2).graph
    done = run(
        PIPELINE,
        Compilation(
            source=source,
            request=request,
            loss=loss,
            optimizer=rule.optimizer,
            other_rows={rows: imported(rows).graph for rows in request.rows_to_infer},
            several_rows=several_rows,
            report=[],
            model=source.graph,
        ),
    )
    priced = costs(done.program, request.target, request.state, request.batch // request.micro_batch)
    assemble = partial(
        Program.assemble,
        signatures=dict(done.program),
        state=request.state,
        source=source,
        rows=done.rows,
        costs=priced,
        report=done.report,
        notes=grouped(
            [*said, *link_notes(source.graph, done.goal), *done.notes, *_without(source.notes, request.augment)]
        ),
        mixing=done.mixing,
        identify=partial(identity_of, imported, source, rule.name, done.rule, done.adapters, done.quantization),
        without_adapters=done.plain,
        quantization=done.quantization,
        adapters=done.adapters,
        scheme=request.scheme.name,
        loss=done.goal.stated,
        target_labels={
            name: asdict(labels)
            for term in done.goal.terms(source.graph)
            for name, labels in term.labels(source.graph).items()
        },
        optimizer=rule.name,
        learning_rate=rule.learning_rate,
        running_rate=rule.running_rate,
        target=request.target,
        batch=request.batch,
        micro_batch=request.micro_batch,
        labels=None if request.labels is None else list(request.labels),
        preprocessing=None if request.preprocessing is None else dict(request.preprocessing),
        frozen=request.frozen,
        loss_scale=float(request.loss_scale),
    )
    return Plan(request.scheme.name, request.micro_batch, priced, assemble, request.recompute)
