"""Forms: the ways in which an op can be written in builtins, and the choice for each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from converter.backend.targets import Target
from converter.ir import Origin, Value
from converter.support.words import count

#: Multiply-accumulates that a byte must save which is held for it: in the file, packed, or as tables of operators.
PER_STORED = 32


@dataclass(frozen=True)
class Form:
    """One way to write an op.

    Attributes:
        name: what a report calls it, and how a target forces it.
        cost: on the target, in the unit of its table.
        emit: adds the builtins and returns what they compute.
        beside: whether a program holds more for it than the weight as it is: other constants, or tables of operators.
    """

    name: str
    cost: float
    emit: Callable[[], Value]
    beside: bool = False


@dataclass(frozen=True)
class FormChoice:
    """The form that a layer got.

    Attributes:
        layer: the layer in the user's model.
        phase: forward, backward or update.
        op: the semantic op.
        result: type of what it computes.
        form: name of the form taken.
        cost: what it costs, in the unit of the target's table.
        alternatives: cost of each other form by name.
    """

    layer: str
    phase: str
    op: str
    result: str
    form: str
    cost: float
    alternatives: dict[str, float]


def choose(forms: list[Form], target: Target) -> Form:
    """Return the cheapest form that the target takes; among those that it forces where there are any."""
    offered = [f for f in forms if not (f.beside and target.stores_once)]
    return min([f for f in offered if f.name in target.forced] or offered, key=lambda form: form.cost)


def record(forms: list[Form], chosen: Form, op: str, result: str, origin: Origin) -> FormChoice:
    """Return what a report says of a choice."""
    others = {form.name: form.cost for form in forms if form is not chosen}
    return FormChoice(origin.layer, origin.phase, op, result, chosen.name, chosen.cost, others)


def form_rows(choices: Iterable[FormChoice]) -> list[tuple[str, ...]]:
    """Choices as lines of a table, equal ones in one: layer, phase, op, result, times, form, cost, the other forms."""
    groups = Counter(
        (c.layer, c.phase, c.op, c.result, c.form, c.cost, tuple(sorted(c.alternatives.items(), key=lambda a: a[1])))
        for c in choices
    )
    return [
        (
            *(layer or "(compiler)", phase, op, result),
            *(str(times), form, count(cost)),
            ", ".join(f"{name} {count(each)}" for name, each in others),
        )
        for (layer, phase, op, result, form, cost, others), times in groups.items()
    ]
