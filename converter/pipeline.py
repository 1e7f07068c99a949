"""The way of the data, from a model to a training program: each stage takes a Graph and returns a Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from converter.autodiff import differentiate
from converter.costs import costs
from converter.errors import NumericError, UsageError, nearest
from converter.ir import FLOAT32, Builder, Graph, TensorType
from converter.losses import Loss, attach_loss
from converter.models import Source, import_loss, import_model
from converter.optim import OptimizerProgram, apply_updates
from converter.passes import (
    absorb_layout,
    eliminate_dead_code,
    fold_batch_norm,
    fold_constants,
    merge_common_subexpressions,
    simplify,
)
from converter.program import Program
from converter.schedule import plan, schedule
from converter.sparse import Row, UpdateScheme, cut_frozen_prefix, select, update_scheme
from converter.targets import Target
from converter.targets import target as find_target
from converter.tflite.export import with_variables
from converter.tflite.fuse import fuse
from converter.tflite.lower import lower

#: What a program may offer.
SIGNATURES = ("train", "evaluate", "infer", "features")


def build(
    model: Any,
    loss: Any = "sparse_categorical_crossentropy",
    optimizer: Any = "sgd",
    update: str | Mapping[str, Any] | UpdateScheme = "full",
    batch: int = 8,
    target: str | Target = "litert-2",
    state: str = "variables",
    targets: Any = None,
    signatures: Sequence[str] = ("train", "evaluate", "infer"),
    labels: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    check: bool = True,
) -> Program:
    """Compiles a model into a training program.

    Args:
        model: a `keras.Model`, the path of a `.keras` file, or a `jax_frontend.Model`.
        loss: `sparse_categorical_crossentropy` or `categorical_crossentropy` from logits, `mse`, or a JAX function
            `(outputs, targets) -> per-example loss [B]`.
        optimizer: `sgd`, `momentum`, `adam`, `adamw`, `rmsprop`, `adagrad`, `lion`, or an optax.GradientTransformation;
            its update is multiplied by the step's input `learning_rate`.
        update: a scheme's name, glob rules {"pattern": fraction or "bias"}, or an UpdateScheme.
        batch: rows of one training step.
        target: runtime, version and processor to choose forms for; see `converter.targets`.
        state: `variables` (the runtime keeps the weights) or `stateless` (they are inputs and outputs).
        targets: for a JAX loss whose y is not like the output: a `jax.ShapeDtypeStruct` of y (first axis the batch).
        signatures: what the program offers: `train`, `evaluate`, `infer`, and `features`, which adds `features` (the
            frozen first layers) and `train_features` (a step on what they gave). The runtime packs the frozen weights
            again for each signature that uses them: leave out what is not called.
        labels: names of the classes in order, for the app; kept in the manifest.
        preprocessing: how the app makes an input, as JSON of the app's own; kept in the manifest.
        check: run one step in the stock interpreter and refuse a program that is not right.

    Returns:
        The program; `program.write(path)` stores it.

    Raises:
        UsageError: an argument is wrong.
        UnsupportedError: the model holds what cannot be compiled; all places are listed.
        NumericError: a weight is not finite, gets no gradient, or does not move.
    """
    from converter.optim.trace import describe, resolve

    batch = _whole_number("batch", batch)
    if state not in ("variables", "stateless"):
        raise UsageError(f"unknown state {state!r}: it is variables or stateless")
    _check_signatures(signatures)
    chosen, scheme, rule = find_target(target), update_scheme(update), resolve(optimizer)
    source = import_model(model, batch)
    graphs, rows, goal = compile_signatures(source, loss, rule, scheme, chosen, targets, signatures)
    program = Program.assemble(
        signatures=graphs,
        state=state,
        source=source,
        rows=rows,
        costs=costs(graphs["train"]),
        scheme=scheme.name,
        loss=goal.name,
        optimizer=describe(optimizer),
        target=chosen.name,
        batch=batch,
        labels=None if labels is None else list(labels),
        preprocessing=None if preprocessing is None else dict(preprocessing),
    )
    if check:
        program.check()
    return program


def _whole_number(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{name} must be at least 1, a whole number; got {value!r}")
    return number


def _check_signatures(signatures: Sequence[str]) -> None:
    for name in signatures:
        if name not in SIGNATURES:
            raise UsageError(f"unknown signature {name!r}.{nearest(name, SIGNATURES)} Known: {', '.join(SIGNATURES)}.")
    if "train" not in signatures:
        raise UsageError("the signature 'train' is missing: it is what the program is for")


def compile_signatures(
    source: Source,
    loss: Any,
    optimizer: Any,
    scheme: UpdateScheme,
    target: Target,
    targets: Any = None,
    signatures: Sequence[str] = ("train",),
) -> tuple[dict[str, Graph], list[Row], Loss]:
    """The stages between import and emission: the lowered, scheduled graph of each signature."""
    forward = canonicalize(source.graph)
    rows = scheme.resolve(absorb_layout(forward), source.blocks)
    selected, rule = with_optimizer(forward, rows, optimizer)
    broken = [p.name for p in selected.parameters.values() if not np.isfinite(p.value).all()]
    if broken:
        raise NumericError(f"these weights hold NaN or infinity and cannot be trained: {', '.join(broken)}")
    goal = import_loss(loss, selected, targets)
    scored = attach_loss(selected, goal)
    scored.outputs = {name: v for name, v in scored.outputs.items() if name not in selected.outputs}
    graphs = {"train": training_step(selected, goal, rule)}
    if "evaluate" in signatures:
        graphs["evaluate"] = eliminate_dead_code(scored)
    if "infer" in signatures:
        graphs["infer"] = selected
    if "features" in signatures:
        graphs["features"], rest = cut_frozen_prefix(selected)
        graphs["train_features"] = training_step(rest, goal, rule)
    return {name: finish(graph, target) for name, graph in graphs.items()}, rows, goal


def with_optimizer(forward: Graph, rows: list[Row], optimizer: Any) -> tuple[Graph, OptimizerProgram]:
    """The graph in which only what trains is a parameter, and the update rule of these parameters.

    Weights are stored as their consumers read them, unless the optimizer looks at rows and columns.
    """
    from converter.optim.trace import trace_optimizer

    for layout in (absorb_layout, Graph.copy):
        selected = specialize(select(layout(forward), rows))
        parameters = selected.parameters.values()
        rule = trace_optimizer(
            optimizer, {p.name: p.model_value for p in parameters}, {p.name: p.view for p in parameters}
        )
        if rule.layout_invariant:
            break
    return selected, rule


def canonicalize(graph: Graph) -> Graph:
    """One form of each thing: constants folded, neutral ops gone."""
    return simplify(fold_constants(eliminate_dead_code(graph)))


def specialize(graph: Graph) -> Graph:
    """Uses that frozen weights are constants: folds them, and batch norms into convolutions."""
    folded = fold_constants(fold_batch_norm(fold_constants(graph)))
    return merge_common_subexpressions(simplify(folded))


def training_step(selected: Graph, loss: Loss, rule: OptimizerProgram) -> Graph:
    """Forward, pruned backward and update in one graph. Its outputs: `loss`."""
    with_loss = attach_loss(selected, loss)
    with_loss.outputs = {"loss": with_loss.outputs["loss"]}
    with_loss = eliminate_dead_code(with_loss)
    backward, gradients = differentiate(with_loss, with_loss.outputs["loss"], selected.parameters)
    silent = [p.name for v, p in selected.parameters.items() if v not in gradients]
    if silent:
        raise NumericError(
            "these parameters get no gradient, the loss does not depend on them: "
            f"{', '.join(silent)}. Freeze them: add the update rule {silent[0]!r}: 0 behind the others, "
            f'for example {{"*": 1, {silent[0]!r}: 0}}.'
        )
    b = Builder(backward)
    learning_rate = b.input("learning_rate", TensorType((1,), FLOAT32))
    step = apply_updates(b.graph, gradients, rule, learning_rate)
    return merge_common_subexpressions(simplify(eliminate_dead_code(step)))


def finish(graph: Graph, target: Target) -> Graph:
    """Lowered, fused and scheduled."""
    return schedule(to_builtins(graph, target), lambda ordered: plan(with_variables(ordered)).size)


def to_builtins(graph: Graph, target: Target) -> Graph:
    """Lowered and fused, in program order."""
    return fuse(merge_common_subexpressions(fold_constants(lower(graph, target))))
