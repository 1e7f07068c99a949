"""Comparison of two programs: their contents, memory, and the cost of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from converter.backend.targets import unit_of
from converter.support.errors import UsageError
from converter.support.words import COSTS, amount, count, size
from converter.tools.report.contents import ReportContents
from converter.tools.report.tables import Row


@dataclass(frozen=True)
class Beside:
    """The tables of a comparison; the first program is the report's own.

    Attributes:
        names: what the programs are called.
        facts: what they are: fact, first, second.
        figures: what they take: figure, first, second, change.
        unit: of the costs by layer.
        layers: what each layer costs in a step: layer, first, second, change, of which the largest change is first.
    """

    names: tuple[str, str]
    facts: list[Row]
    figures: list[Row]
    unit: str
    layers: list[Row]


def beside(first: ReportContents, second: ReportContents) -> Beside:
    """Compares two programs.

    Costs by layer are by the target's table where both have the same, else FLOPs.

    Args:
        first: the program of the report.
        second: the other one.

    Raises:
        UsageError: they are the same.
    """
    if bytes(first.program.data) == bytes(second.program.data):
        raise UsageError("beside: both files are the same program", page="reports")
    one, other = first.program.manifest, second.program.manifest
    same_unit = one.target == other.target
    names = (one.name, other.name) if one.name != other.name else (f"{one.name} (1)", f"{other.name} (2)")
    unit = unit_of(one.target) if same_unit else ""
    figures = [
        _change(COSTS[name][0], one.costs.get(name), other.costs.get(name), partial(amount, name, unit=unit))
        for name in COSTS
        if name != "file_bytes"
        and (one.costs.get(name) is not None or other.costs.get(name) is not None)
        and (same_unit or name not in ("step_cost", "product_cost"))
    ]
    figures.append(_change("file", len(first.program.data), len(second.program.data), size))
    return Beside(
        names,
        [
            (label, said(one), said(other)) if said(one) == said(other) else (f"{label} *", said(one), said(other))
            for label, said in _FACTS.items()
        ],
        figures,
        f"cost by the table of {one.target}" if same_unit else "FLOPs",
        _layers(_costs(first, same_unit), _costs(second, same_unit)),
    )


#: What two programs may differ in, by what it is called.
_FACTS: Mapping[str, Callable[[Any], str]] = {
    "scheme": lambda m: m.update.scheme,
    "optimizer": lambda m: m.optimizer,
    "loss": lambda m: " + ".join(m.losses.values()),
    "batch": lambda m: f"{m.batch} in micro-batches of {m.micro_batch}" if m.accumulates else str(m.batch),
    "target": lambda m: m.target,
    "state": lambda m: m.state,
    "frozen layers": lambda m: m.frozen,
    "signatures": lambda m: ", ".join(m.signatures),
}


def _costs(contents: ReportContents, by_table: bool) -> dict[str, int]:
    layers = contents.layers.items()
    return {name: sum((layer.costs if by_table else layer.flops).values()) for name, layer in layers}


def _layers(one: Mapping[str, int], other: Mapping[str, int]) -> list[Row]:
    names = [name for name in dict.fromkeys((*one, *other)) if one.get(name) or other.get(name)]
    names.sort(key=lambda name: -abs(other.get(name, 0) - one.get(name, 0)))
    return [_change(name or "(compiler)", one.get(name), other.get(name), count) for name in names]


def _change(label: str, one: float | None, other: float | None, said: Callable[[float], str]) -> Row:
    """Return a row: what it is, both figures, and how the second is to the first."""
    if one is None or other is None:
        return (label, *("" if value is None else said(value) for value in (one, other)), "")
    ratio = "" if not one else "same" if one == other else f"{other / one:.2f} x"
    return (label, said(one), said(other), ratio)
