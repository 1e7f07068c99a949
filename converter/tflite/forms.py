"""Forms: the ways in which an op can be written in builtins, and what was chosen for each layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from converter.ir import Origin, Value


@dataclass(frozen=True)
class Form:
    """One way to write an op.

    Attributes:
        name: what a report calls it, and how a target forces it.
        cost: on the target, in the unit of its table.
        emit: adds the builtins and returns what they compute.
    """

    name: str
    cost: float
    emit: Callable[[], Value]


@dataclass(frozen=True)
class FormChoice:
    """The form that a layer got.

    Attributes:
        layer: the layer in the person's model.
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


def choose(forms: list[Form], forced: frozenset[str]) -> Form:
    """The cheapest form; among those whose name is forced where there are any."""
    return min([f for f in forms if f.name in forced] or forms, key=lambda form: form.cost)


def record(forms: list[Form], chosen: Form, op: str, result: str, origin: Origin) -> FormChoice:
    """What a report says of a choice."""
    others = {form.name: form.cost for form in forms if form is not chosen}
    return FormChoice(origin.layer, origin.phase, op, result, chosen.name, chosen.cost, others)
