"""Pass pipeline between a model and its file, in order: the compiler's table of contents."""

from __future__ import annotations

from dataclasses import replace

from converter.backend.stages import beside_engine, in_order, raised, to_builtins
from converter.driver.compilation import Compilation
from converter.driver.features import (
    adapters,
    augmentation,
    batch_norm,
    class_head,
    dora,
    dropout,
    frozen_float16,
    frozen_int4,
    frozen_int8,
    kept_features,
    labelled,
    layouts,
    loss,
    model_files,
    optimizer,
    rounding,
    signatures,
    trained_int8,
    watch,
)
from converter.driver.losses import scored_outputs
from converter.ir import Graph
from converter.passes import absorb_layout
from converter.passes.manager import Pass, in_order_of_need
from converter.program.manifest import rows_to_infer
from converter.support.notes import Note, raised_notes
from converter.training.augment import augmentation_note
from converter.training.batch_dependence import mixing_notes
from converter.training.batch_norm import batch_norm_notes
from converter.training.constraints import constraint_notes
from converter.training.dropout import dropout_notes, dropouts
from converter.training.schemes.heads import kept_head_notes, without_adapter_notes


def resolve_scheme(c: Compilation) -> Compilation:
    """Say of each parameter whether it trains, and why."""
    model = absorb_layout(c.graphs.model)
    scored = scored_outputs(c.loss, model, c.options.y, c.options.loss_weights, c.source.library)
    return replace(c, resolved=c.request.scheme.resolve(model, c.source.blocks, scored))


def lower(c: Compilation) -> Compilation:
    """Lower every signature to TFLite's builtins, in the forms that are cheapest where it runs."""
    first = next(iter(c.program))
    places = {name: c.once for name in c.program if name == "infer" or rows_to_infer(name)}
    if c.request.step == "gradients":
        places["apply"] = beside_engine(c.target)
    program = c.program.mapped(
        lambda name, graph: to_builtins(graph, places.get(name, c.target), c.report if name == first else None)
    )
    return replace(c, program=program)


def schedule(c: Compilation) -> Compilation:
    """Put operators into the order that needs least memory.

    What `infer` computes is exported for any number of rows.
    """

    def ordered(name: str, graph: Graph) -> Graph:
        return in_order(graph, c.target, c.request.recompute, in_parts=True, any_rows=name.startswith("infer"))

    return replace(c, program=c.program.mapped(ordered))


def say(c: Compilation) -> Compilation:
    """Collect what the user is to know."""
    reasons = {row.parameter: row.why for row in c.resolved}
    notes = [
        *c.notes,
        *batch_norm_notes(c.source.batch_norms, c.by_batch, c.options.batch_norm == "fixed"),
        *constraint_notes(c.source.regularization.constraints, c.graphs.model.weights()),
        *dropout_notes(dropouts(c.source.graph), c.options.dropout == "train"),
        *([augmentation_note(c.options.augment)] if c.augmentation is not None else []),
        *kept_head_notes(reasons),
        *without_adapter_notes(reasons),
        *mixing_notes(c.mixing),
        *raised_notes(raised(c.graphs.scored, c.target)),
        *([Note(f"target {c.target.name}", "as compiled", c.target.advice)] if c.target.advice else []),
    ]
    return replace(c, notes=notes)


#: From the model as it was imported to scheduled signatures: name, what it does, why it stands there, what must hold
#: before, and what holds from there on.
PIPELINE = in_order_of_need(
    Pass("drop-random-marks", dropout.drop_marks, "before folding, which a mark keeps from its operand"),
    Pass("canonicalize", batch_norm.make_canonical, "schemes read one form of each thing", (), ("canonical",)),
    Pass("assign-layouts", layouts.assign, "all that follows knows channels last", ("canonical",), ("layouts",)),
    Pass("resolve-scheme", resolve_scheme, "of the whole model: nothing is frozen yet", ("layouts",), ("scheme",)),
    Pass("choose-batch-norms", batch_norm.choose_layers, "those that the scheme freezes keep theirs", ("scheme",)),
    Pass("add-adapters", adapters.add_adapters, "they train like weights, so before these", ("scheme",), ("rows",)),
    Pass("find-labelled", labelled.find, "of the whole model, with its adapters", ("rows",)),
    Pass("keep-statistics", batch_norm.keep_statistics, "selecting folds what is neither state nor output", ("rows",)),
    Pass("store-int4", frozen_int4.store, "of weights as the model has them, before any is folded", ("rows",)),
    Pass("take-norms", dora.take_norms, "of weights as they are multiplied, before they are folded", ("rows",)),
    Pass("select", optimizer.select_and_trace, "optimizers see weights as they are stored", ("rows",), ("selected",)),
    Pass("round-float16", frozen_float16.round_weights, "weights as they are folded", ("selected",)),
    Pass("take-statistics", batch_norm.take_inputs, "from here to the step nothing folds", ("selected",)),
    Pass("carry-over", model_files.carry_over, "what trains is known, and nothing folds any more", ("selected",)),
    Pass("choose-trained-int8", trained_int8.choose, "what trains, and its optimizer, are known", ("selected",)),
    Pass("form-step", loss.form_step, "its closures know the layers' inputs", ("selected",), ("step",)),
    Pass("draw-in-step", dropout.draw_in_step, "inside of the statistics of the batch", ("step",)),
    Pass("trace-augmentation", augmentation.trace, "with numbers of the same call", ("step",)),
    Pass("check-weights", loss.check_weights, "of what trains: others may be what they are", ("selected",)),
    Pass("check-features", kept_features.check, "before the work that follows", ("selected",)),
    Pass("join-loss", loss.join_loss, "a link is found in what is left of the model", ("selected",), ("goal",)),
    Pass("measure-rounded", rounding.measure, "samples are scored by the loss", ("goal",)),
    Pass("find-mixing", loss.find_mixing, "before graphs of a wrong step are built", ("goal",)),
    Pass("make-plain", adapters.make_plain, "it freezes what the rule stores", ("selected",)),
    Pass("quantize-frozen", frozen_int8.quantize_frozen, "samples are scored by the loss", ("goal",), ("suffix",)),
    Pass("find-class-head", class_head.find, "of what is behind the features", ("suffix",)),
    Pass("leave-out-draws", dropout.for_inference, "all but the step infer", ("suffix",), ("inference",)),
    Pass("score", signatures.score, "figures are those of inference", ("inference", "goal"), ("scored",)),
    Pass("build-step", signatures.build_step, "the step is the first signature", ("suffix", "goal"), ("signatures",)),
    Pass("add-evaluate-infer", signatures.add_evaluate_and_infer, "behind the step", ("scored", "signatures")),
    Pass("add-other-rows", signatures.add_other_rows, "with the state of `infer`", ("signatures",)),
    Pass("add-fisher", signatures.add_fisher, "of what int8 left in float32", ("suffix", "signatures")),
    Pass("find-poles", watch.find, "optimizer and derivatives are known, op by op", ("signatures",)),
    Pass("store-trained-int8", trained_int8.store, "of weights as a step moves them", ("signatures",)),
    Pass("watch", watch.watch, "of what a step writes, as it is stored", ("signatures",)),
    Pass("lower", lower, "the last semantic rewriting is done", ("signatures",), ("builtins",)),
    Pass("join-int8", frozen_int8.join_prefix, "the prefix is lowered already", ("builtins",)),
    Pass("join-augmentation", augmentation.join_to_step, "in front of that prefix", ("builtins",)),
    Pass("graft", model_files.graft, "it takes no part in what is behind", ("builtins",)),
    Pass("add-features", kept_features.add_signatures, "theirs begin behind the prefix", ("builtins",)),
    Pass(
        "store-contracted-float16",
        frozen_float16.store_contracted,
        "pieces of a step are cut by what they read",
        ("builtins",),
    ),
    Pass("schedule-plain", adapters.order_plain, "it was lowered with the prefix", ("builtins",)),
    Pass("schedule", schedule, "nothing moves an operator any more", ("builtins",), ("scheduled",)),
    Pass("store-float16", frozen_float16.store, "schedules take constants as they are", ("scheduled",)),
    Pass("leave-whole-out", kept_features.leave_whole_out, "what is exported is stored like others", ("scheduled",)),
    Pass("name-classes", class_head.name_classes, "no signature but those of the state knows names", ("scheduled",)),
    Pass("say", say, "of all that was done", ("scheduled",)),
)
