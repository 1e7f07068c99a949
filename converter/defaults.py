"""What a build takes over from the model where the person names nothing: its compiled loss and optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

from converter.errors import UsageError
from converter.losses import JointLoss
from converter.models import Source
from converter.notes import Note

#: What trains a model that says nothing itself.
DEFAULT_LOSS, DEFAULT_OPTIMIZER = "sparse_categorical_crossentropy", "sgd"


def _said(loss: Any) -> str:
    """A loss, and whether its numbers are not those of its name."""
    summed = any(part.summed for part in (loss.parts.values() if isinstance(loss, JointLoss) else [loss]))
    return f"{loss.name}{', the sum over the rows of a step' if summed else ''}"


class Rule(NamedTuple):
    """An optimizer for a learning rate of 1, its name, and the rate that it was built with, if it was."""

    optimizer: Any
    name: str
    learning_rate: float | None = None


def taken_over(source: Source, loss: Any, optimizer: Any) -> tuple[Any, Rule, list[Note]]:
    """The loss and the optimizer: what was asked for, else what the model was compiled with.

    Raises:
        UsageError: no loss or optimizer was named, and that of the model cannot be taken over.
    """
    from converter.optim.rate import at_rate_one
    from converter.optim.trace import describe

    compiled = source.compiled
    notes: list[Note] = []
    if loss is None and compiled is not None:
        if compiled.problem is not None:
            raise UsageError(
                f"{source.name} was compiled with a loss that cannot be taken over: {compiled.problem}. Name one, "
                'for example loss="mse" (--loss mse), or pass a function (outputs, targets) -> per-example loss'
            )
        if compiled.loss is not None:
            loss = compiled.loss
            by_weight = "rows of other weights than 1 count as with reduction='mean_with_sample_weight' of Keras"
            notes.append(Note("loss", "as compiled", f"{_said(loss)}; name another to change it; {by_weight}"))
    loss = DEFAULT_LOSS if loss is None else loss
    if optimizer is None and compiled is not None:
        notes += compiled.notes
        if compiled.optimizer_problem is not None:
            raise UsageError(
                f"{source.name} was compiled with an optimizer that cannot be taken over, "
                f"{compiled.optimizer_problem}. "
                'Name one, for example optimizer="adam" (--optimizer adam), or pass an optax.GradientTransformation'
            )
        if compiled.optimizer is not None:
            rule = Rule(compiled.optimizer, compiled.optimizer_name, compiled.learning_rate)
            return loss, rule, [*notes, Note("optimizer", "as compiled", f"{rule.name}; name another to change it")]
    if optimizer is None or isinstance(optimizer, str):
        name = optimizer or DEFAULT_OPTIMIZER
        return loss, Rule(name, name), notes
    at_one, rate = at_rate_one(optimizer)
    return loss, Rule(at_one, describe(optimizer), rate), notes
