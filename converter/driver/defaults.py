"""Defaults from the model: its compiled loss and optimizer, where the user names nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from converter.frontends.source import Library, Source
from converter.frontends.table import reader_of
from converter.support.errors import UsageError
from converter.support.notes import Note
from converter.training.losses import JointLoss

if TYPE_CHECKING:  # they need optax, which a device that only runs programs has not
    from converter.training.optim.running_rate import ScheduledRate

#: What trains a model that says nothing itself.
DEFAULT_LOSS, DEFAULT_OPTIMIZER = "sparse_categorical_crossentropy", "sgd"


def _said(loss: Any) -> str:
    """Return a loss, and whether its numbers are not those of its name."""
    summed = any(part.summed for part in (loss.parts.values() if isinstance(loss, JointLoss) else [loss]))
    return f"{loss.title}{', the sum over the rows of a step' if summed else ''}"


def _with(name: str, options: Sequence[str]) -> str:
    """Return a name, and what it was compiled with."""
    return f"{name} with {', '.join(options)}" if options else name


class OptimizerRule(NamedTuple):
    """An optimizer for a learning rate of 1, its name, and its rate.

    Attributes:
        optimizer: an optax.GradientTransformation.
        name: what it is called.
        learning_rate: the number that it was built with; None where its rate runs in the program.
        running_rate: that, where it does.
    """

    optimizer: Any
    name: str
    learning_rate: float | None
    running_rate: ScheduledRate | None


class Taken(NamedTuple):
    """The loss and the optimizer of a build, known, and what the user did not say of them."""

    loss: Any
    rule: OptimizerRule
    notes: list[Note]


def taken_over(source: Source, loss: Any, optimizer: Any) -> Taken:
    """Return the loss and the optimizer: what was asked for, else what the model was compiled with.

    Raises:
        UsageError: no loss or optimizer was named, and that of the model cannot be taken over.
    """
    compiled = source.defaults.compiled
    notes: list[Note] = []
    if loss is None and compiled is not None:
        if compiled.problem is not None:
            raise UsageError(
                f"{source.name} was compiled with a loss that cannot be taken over: {compiled.problem}. Name one, "
                'for example loss="mse" (--loss mse), or pass a function (outputs, targets) -> per-example loss',
                page="arguments",
            )
        if compiled.loss is not None:
            loss = compiled.loss
            by_weight = "rows of other weights than 1 count as with reduction='mean_with_sample_weight' of Keras"
            said_of_it = f"{_with(_said(loss), compiled.loss_options)}; name another to change it; {by_weight}"
            notes.append(Note("loss", "as compiled", said_of_it))
    if loss is None and source.defaults.loss is not None:
        loss = source.defaults.loss
        notes.append(Note("loss", "a default", f"{loss}, as of any language model; name another to change it"))
    if loss is None:
        loss = DEFAULT_LOSS
        notes.append(Note("loss", "a default", f"{loss}: the model names none; name another to change it"))
    rule, said = _rule(source, optimizer)
    if rule.running_rate is not None:
        said.append(_note(rule.running_rate))
    return Taken(loss, rule, [*notes, *said])


def _rule(source: Source, optimizer: Any) -> tuple[OptimizerRule, list[Note]]:
    """Return the optimizer, and what the user did not say of it."""
    from converter.training.optim.named import RATE_OF_ADADELTA, NamedOptimizer, lacks_rate, resolve
    from converter.training.optim.rate import rated
    from converter.training.optim.running_rate import running_rate
    from converter.training.optim.trace import describe

    if (library := reader_of(optimizer, source.library)) is not None:
        return _rule_of(library, source, optimizer)
    compiled, shapes = source.defaults.compiled, {p.name: p.model_value.shape for p in source.graph.weights().values()}
    notes: list[Note] = []
    if optimizer is None and compiled is not None:
        notes += compiled.notes
        if compiled.optimizer_problem is not None:
            raise UsageError(
                f"{source.name} was compiled with an optimizer that cannot be taken over, "
                f"{compiled.optimizer_problem}. "
                'Name one, for example optimizer="adam" (--optimizer adam), or pass an optax.GradientTransformation',
                page="arguments",
            )
        if compiled.optimizer is not None:
            rate = compiled.learning_rate
            running = running_rate(compiled.optimizer, shapes) if rate is None else None
            rule = OptimizerRule(compiled.optimizer, compiled.optimizer_name, rate, running)
            said = _with(rule.name, compiled.optimizer_options)
            return rule, [*notes, Note("optimizer", "as compiled", f"{said}; name another to change it")]
    if optimizer is None or isinstance(optimizer, str):
        if optimizer is None:
            optimizer = source.defaults.optimizer or DEFAULT_OPTIMIZER
            why = "as of any model of a file" if source.defaults.optimizer else "the model names none"
            notes.append(Note("optimizer", "a default", f"{optimizer}: {why}; name another to change it"))
        optimizer = NamedOptimizer(optimizer)
    name = describe(optimizer)
    if isinstance(optimizer, NamedOptimizer) and optimizer.takes_default:
        usual = source.defaults.rates.get(optimizer.name, optimizer.default_rate)
        fits = " and which fits language models" if optimizer.name in source.defaults.rates else ""
        said = f"{usual:g}, as {name} was named without one{fits}; give another to fit and train"
        notes.append(Note("learning rate", "a default", f"{said}, or build with optimizer=optax.{name}(...)"))
        optimizer = replace(optimizer, options={**optimizer.options, "learning_rate": usual})
    elif not isinstance(optimizer, NamedOptimizer) and lacks_rate(optimizer):
        without = "as optax.adadelta() was built without one, and without its minus: it descends at this rate"
        notes.append(Note("learning rate", "a default", f"{RATE_OF_ADADELTA:g}, {without}"))
    tx, rate, running = rated(resolve(optimizer), shapes)
    return OptimizerRule(tx, name, rate, running), notes


def _rule_of(library: Library, source: Source, optimizer: Any) -> tuple[OptimizerRule, list[Note]]:
    """Return the rule of an optimizer of a library, by the names of the parameters that it was made of."""
    from converter.training.optim.running_rate import running_rate

    read = library.optimizer(optimizer)
    shapes = {p.name: p.model_value.shape for p in source.graph.weights().values()}
    running = running_rate(read.optimizer, shapes) if read.learning_rate is None else None
    notes = [Note("optimizer", "left out", text) for text in read.left_out]
    notes.append(Note("optimizer", f"as in {library.title}", _with(read.name, read.kept)))
    return OptimizerRule(read.optimizer, read.name, read.learning_rate, running), notes


def _note(rate: ScheduledRate) -> Note:
    """Return what to say of a rate that runs in the program."""
    if rate.zero_from is None:
        return Note(
            "learning rate", "in the program", f"{rate.description}; rate_scale= of fit and train multiplies it"
        )
    constant = "a constant rate" + (f", as {rate.highest:g}, the highest of it" if rate.highest else "")
    return Note(
        "learning rate",
        "in the program",
        f"{rate.description}: from step {rate.zero_from} on it is 0, and training changes nothing any more. "
        f"To go on learning on a device build with {constant}",
    )
