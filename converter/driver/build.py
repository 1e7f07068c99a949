"""Compilation of a model to a training program: request and model are read, the passes run, the file comes last."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from converter.backend.costs.costs import costs
from converter.driver.assemble import begin
from converter.driver.budget import check_room, fit
from converter.driver.compilation import Compilation, Stages
from converter.driver.defaults import Taken, taken_over
from converter.driver.features.class_head import with_room
from converter.driver.features.lengths import of_shorter, with_shorter
from converter.driver.features.preprocess import check_preprocess, preprocessed
from converter.driver.fingerprint import identity_of
from converter.driver.heads import Heads, heads_of, options_of_heads
from converter.driver.losses import without_idle_outputs
from converter.driver.models import open_model, with_own_augmentation
from converter.driver.option_keywords import takes_options
from converter.driver.options import Options
from converter.driver.pipeline import PIPELINE
from converter.driver.plain.operands import ENOUGH_ROWS
from converter.driver.program import Plan, Program
from converter.driver.quantization.samples import any_samples
from converter.driver.requests import (
    Request,
    check_dropout,
    check_labels,
    check_sizes,
    check_weights,
    with_own_words,
)
from converter.frontends.class_room import room_of
from converter.frontends.source import Source
from converter.frontends.table import reader_of
from converter.frontends.wide_head import head_reads_of, with_head_reads
from converter.ir import Graph
from converter.ir.module import Module
from converter.passes.manager import run
from converter.passes.read_weights import read_weights, without_numbers, without_sources
from converter.program.manifest import INFER
from converter.support.collecting import uncollected
from converter.support.errors import UnsupportedError, UsageError
from converter.support.extras import require
from converter.support.notes import Note, grouped
from converter.support.words import parse_bytes
from converter.training.dropout import dropouts
from converter.training.losses import link_notes
from converter.training.schemes import update_scheme

#: The model for so many rows.
Import = Callable[[int], Source]


def make_program(model: Any, options: Options) -> Program:
    """Compile a model into a training program.

    Args:
        model: one of

            - Keras: a `keras.Model` of any backend, or the path of a `.keras` file;
            - PyTorch: a `torch.nn.Module` with `inputs`, a `torch.export.ExportedProgram`, the path of a `.pt2` file,
              or a `pocketune.TorchModel` (inputs by keyword, outputs by name);
            - JAX: a module of Flax or Equinox with `inputs`, or a function, `pocketune.Model(apply, params, inputs)`;
            - the path of a `.tflite` file or of a SavedModel, with `classes`, `cut` and `outputs`, or a
              `pocketune.TFLiteModel` (a head of one's own, one of several signatures);
            - a language model, with `length`: the path of a `.gguf` file or of a folder of transformers, or a
              `pocketune.LanguageModel` (several texts in a row).

        options: what is asked for.

    Returns:
        The program; `program.write(path)` stores it.

    Raises:
        UsageError: an argument is wrong, or nothing fits the memory budget: the least that would is said.
        UnsupportedError: the model holds what cannot be compiled; all places are listed.
        NumericError: a weight is not finite, gets no gradient, or does not move.
    """
    planned = plan(model, options, needs_weights=True)
    with uncollected():
        program = replace(planned.assemble(), tried=planned.tried)
    if program.quantization is not None:
        program.quantization.warn(stacklevel=3)
    if options.check:
        program.check()
    return program


def make_heads(models: Mapping[str, Any], options: Mapping[str, Any]) -> Heads:
    """Compile models of one backbone into one file, in which the frozen layers in front are once.

    Args:
        models: by head, as for `build`.
        options: of all heads; what is a dict by head is of one each, {"birds": "adam", "frogs": "sgd"}.

    Returns:
        The heads; `heads.write(path)` stores them, and `TrainingSession(path, head="birds")` opens one.

    Raises:
        UsageError: as `build`, or the frozen layers in front are not the same: the first that differs is named.
        UnsupportedError, NumericError: as `build`.
    """
    own = options_of_heads(options, list(models))
    begun = {head: plan(model, own[head], needs_weights=True).begin() for head, model in models.items()}
    with uncollected():
        made = heads_of(begun, own)
    for program in made.programs.values():
        if program.quantization is not None:
            program.quantization.warn(stacklevel=3)
    if any(one.check for one in own.values()):
        made.check()
    return made


build = takes_options(Options)(make_program, "build")
build_heads = takes_options(Options, as_given=True)(make_heads, "build_heads")


def plan(model: Any, options: Options, needs_weights: bool = False) -> Plan:
    """Do all that `build` does before a file is made: nothing is run, and shapes are enough of the weights.

    Args:
        model: as for `build`, or a `pocketune.Model` whose parameters are jax.ShapeDtypeStruct.
        options: of the build.
        needs_weights: refuse a model of shapes alone.

    Raises:
        UsageError, UnsupportedError, NumericError: as `build`.
    """
    opened = open_model(model, options)
    request = Request.of(with_own_augmentation(opened, options))
    require("compiler", "compiling a model")
    check_preprocess(options.preprocess, request.target)
    room, reads = room_of(options.classes), head_reads_of(options.head_reads)

    @cache
    def imported(rows: int) -> Source:
        return with_head_reads(with_room(preprocessed(opened.source(rows), options.preprocess), room), reads)

    if options.memory_budget is None:
        return _plan(imported, request, needs_weights)
    budget, batch = parse_bytes(options.memory_budget), request.batch
    check_room(budget, imported(request.micro_batch).graph)
    return fit(
        budget,
        [n for n in range(1, batch + 1) if not batch % n] if options.micro_batch is None else [request.micro_batch],
        options.recomputes,
        lambda rows, again: _plan(imported, replace(request, micro_batch=rows, recompute=again), needs_weights),
        lambda scheme, frozen: _other(imported, request, scheme, frozen),
    )


def _without(notes: Sequence[Note], augment: Any) -> list[Note]:
    """Return the notes but those on layers that are left out of the model, and that the augmentation is made of."""
    layers = getattr(augment, "layers", ())
    return [note for note in notes if note.status != "left out" or note.subject not in layers]


def _other(imported: Import, request: Request, scheme: str, frozen: str) -> Plan:
    """Plan a named scheme with micro-batches of one row; int8, whatever the samples are, takes the same."""
    from converter.driver.quantization import QuantizationWarning

    samples = request.options.calibration if frozen == "int8" else None
    if frozen == "int8" and samples is None:
        samples = any_samples(imported(1).graph)
    options = replace(request.options, frozen=frozen, calibration=samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        asked = replace(request, options=options, scheme=update_scheme(scheme), micro_batch=1)
        return _plan(imported, asked, needs_weights=False)


@uncollected()
def _plan(imported: Import, request: Request, needs_weights: bool) -> Plan:
    """Plan one request."""
    done, taken = _compiled(imported, request, needs_weights)
    request, source = done.request, done.source
    priced = costs(done.program, request.target, request.state, request.batch // request.micro_batch)
    notes = [*taken.notes, *link_notes(source.graph, done.goal), *done.notes]
    made = partial(
        begin,
        request=request,
        signatures=dict(done.program),
        costs=priced,
        done=done.finished(),
        notes=grouped([*notes, *_without(source.notes, request.options.augment)]),
        rule=taken.rule,
        identify=partial(identity_of, imported, source, taken.rule.name, done.rule, done.adapters, done.quantization),
    )
    return Plan(request.scheme.name, request.micro_batch, priced, made, request.recompute)


def _compiled(
    imported: Import, request: Request, needs_weights: bool, transposed: Collection[str] | None = None
) -> tuple[Compilation, Taken]:
    """Run the passes on a model, and on it for each shorter length that it has; `transposed` as of a `Compilation`."""
    imported = _with_weights(imported, request.options.is_int4, needs_weights)
    source, taken = _checked(imported, request, needs_weights)
    request = with_own_words(request, source)
    shorter = {}
    if source.lengths:  # weights lie as in no length alone, but the same in all
        asked, transposed = of_shorter(request, taken.loss), ()
        shorter = {n: partial(_program_of, at, asked, needs_weights, transposed) for n, at in source.lengths.items()}
    several_rows = None
    if request.accumulates:  # of one row nothing can be seen of how rows influence each other
        several_rows = source.graph if request.micro_batch > 1 else _of_two_rows(imported, source)
    exported, of_few = _of_several_rows(imported, request, source)
    done = run(
        PIPELINE,
        Compilation(
            source=source,
            request=request,
            loss=taken.loss,
            optimizer=_held(taken.rule.optimizer, request.options.proximal),
            learning_rate=taken.rule.learning_rate,
            other_rows={rows: imported(rows).graph for rows in request.rows_to_infer} | exported,
            generating=_generating(source, request, needs_weights),
            several_rows=several_rows,
            of_few=of_few,
            report=[],
            graphs=Stages(model=source.graph),
            transposed=transposed,
        ),
    )
    return with_shorter(_without_exported(done, exported), shorter), taken


def _held(optimizer: Any, proximal: float | None) -> Any:
    """Return the optimizer, with FedProx's term before it where it is asked for."""
    if proximal is None:
        return optimizer
    from converter.training.optim.proximal import near_anchor

    return near_anchor(optimizer, float(proximal))


def _of_several_rows(imported: Import, request: Request, source: Source) -> tuple[dict[int, Graph], str]:
    """Return what `infer` is for more rows, by how many, where it is for too few to export it for any number of them.

    And why there is none where the model is not for so many. Not of language models, which are large: of one row they
    are exported for one.
    """
    is_asked = "infer" in request.signatures and source.file is None and source.language is None
    if not is_asked or request.micro_batch >= ENOUGH_ROWS or request.rows_to_infer:
        return {}, ""
    try:
        return {ENOUGH_ROWS: imported(ENOUGH_ROWS).graph}, ""
    except Exception as problem:  # the model's own code may raise anything for rows that it is not for
        said = next(iter(str(problem).splitlines()), "") or type(problem).__name__
        return {}, f"the model is not for {ENOUGH_ROWS} rows: {said}"


def _without_exported(done: Compilation, exported: Collection[int]) -> Compilation:
    """Return what is done without the signature that is there to be exported alone."""
    alone = {f"{INFER}{rows}" for rows in exported} & done.program.keys()
    if not alone:
        return done
    program = {name: graph for name, graph in done.program.items() if name not in alone}
    return replace(done.staged(exported=done.program[alone.pop()]), program=Module(program))


def _program_of(imported: Import, request: Request, needs_weights: bool, transposed: Collection[str]) -> Module:
    """Return the program of a model for a shorter length."""
    return _compiled(imported, request, needs_weights, transposed)[0].program


def _generating(source: Source, request: Request, needs_weights: bool) -> dict[str, Graph]:
    """Return the graphs of the signatures that write a text on, where they are asked for."""
    if "generate" not in request.signatures:
        return {}
    if source.language is None:
        raise UsageError(
            f"the signature 'generate' is of language models, a .gguf file for one: {source.name} has none",
            page="arguments",
        )
    if request.options.frozen == "int8":
        raise UsageError("generate does not go together with frozen='int8': take int4-blockwise", page="arguments")
    if needs_weights and request.options.is_int4:
        return {name: make() for name, make in source.language.generates.items()}
    read = read_weights if needs_weights else without_numbers if request.options.is_int4 else without_sources
    return {name: read(make()) for name, make in source.language.generates.items()}


def _with_weights(imported: Import, is_int4: bool, needed: bool) -> Import:
    """Return the import of a model whose weights are read, where they are needed and are not stored in int4."""
    if needed and is_int4:
        return imported  # what becomes int4 is read then, and the rest
    reading = read_weights if needed else without_numbers if is_int4 else without_sources

    def read(rows: int) -> Source:
        source = imported(rows)
        return replace(source, graph=reading(source.graph))

    return cache(read)


def _of_two_rows(imported: Import, source: Source) -> Graph:
    """Return the model for two rows. Of a file that is for one at a time each row of a step has a call of its own."""
    try:
        return imported(2).graph
    except (UnsupportedError, UsageError):
        if source.file is None:
            raise
        return source.file.independent_rows(source.graph)


def _checked(imported: Import, request: Request, needs_weights: bool) -> tuple[Source, Taken]:
    """Return the model, and loss and optimizer, checked with what was asked for."""
    from converter.training.optim.named import resolve
    from converter.training.optim.rate import check_descends

    options = request.options
    if options.optimizer is not None and reader_of(options.optimizer) is None:
        check_descends(resolve(options.optimizer))
    source = imported(request.micro_batch)
    check_sizes(source, request.micro_batch)
    if needs_weights or options.frozen == "int8":
        check_weights(source)
    check_dropout(request, bool(dropouts(source.graph)))
    source = _as_its_library_trains(source, options.optimizer)
    taken = taken_over(source, options.loss, options.optimizer)
    source = without_idle_outputs(source, taken.loss, options.loss_weights)
    check_labels(options, source)
    return source, taken


def _as_its_library_trains(source: Source, optimizer: Any) -> Source:
    """Return a model as it would be trained where it comes from, or where its optimizer does."""
    reader = reader_of(optimizer, source.library)
    for library in {id(one): one for one in (source.library, reader) if one is not None}.values():
        source = library.as_trained(source, optimizer if library is reader else None)
    return source
