"""Supported operations, and under which conditions: as the import rules declare it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from jax_frontend.table import RULES
from jax_frontend.unsupported import GROUPS, HINTS

#: Where a program computes something else than JAX, and why.
DIFFERENCES = (
    (
        "NaN: XNNPACK's exp, max and min read NaN as a number, and so does what is made of them (cosh, softplus, "
        "relu and its derivative, largest elements of windows and axes); its rsqrt gives NaN at 0 and its logistic "
        "at infinity. To guard them would cost every element another operator. Inputs, weights and losses that are "
        "not finite are refused."
    ),
    (
        "Indices out of range: clamped or filled where the code says so (mode='clip', fill_value=0); where JAX "
        "would read NaN the runtime refuses the call, as a test of each index would make every look-up slower."
    ),
    "Half precision is computed in float32, and integers of 64 bits in 32.",
)


@dataclass(frozen=True)
class PrimitiveEntry:
    """A jaxpr primitive.

    Attributes:
        primitive: its name.
        subject: what its rule is about; `refused` where there is none.
        how: what it becomes, or what to do without it.
        refused: forms of it that cannot be imported.
    """

    primitive: str
    subject: str
    how: str
    refused: tuple[str, ...] = ()


def catalogue() -> list[PrimitiveEntry]:
    """Return every primitive that has a rule, by subject, and then those that are known to have none."""
    entries = [_entry(name) for name in RULES]
    without = {**HINTS, **{name: HINTS[group] for name, group in GROUPS.items()}}
    absent = [
        PrimitiveEntry(name, "refused", advice)
        for name, advice in without.items()
        if name not in RULES and " " not in name
    ]
    return sorted(entries, key=lambda e: (e.subject, e.primitive)) + sorted(absent, key=lambda e: e.primitive)


def _entry(primitive: str) -> PrimitiveEntry:
    rule = RULES[primitive]
    function = inspect.unwrap(rule.function)
    how = (inspect.getdoc(function) or "").partition("\n")[0]
    subject = function.__module__.rpartition(".")[2]
    return PrimitiveEntry(primitive, subject, how, tuple(refusal.what for refusal in rule.refuses))
