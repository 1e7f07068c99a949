"""Tables of a report, row by row: they say all that the drawings show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from converter.backend.lowering.forms import form_rows
from converter.backend.targets import unit_of
from converter.program.manifest import LOSS_OF_STEP, TensorSpec
from converter.program.origins import PHASES
from converter.support.folding import fold
from converter.support.words import COSTS, amount, count, counted, reading, share, size
from converter.tools.report.contents import STATUSES, LayerCosts, ReportContents

Row = tuple[str, ...]
#: More weights than these are folded.
_MANY = 24


@dataclass(frozen=True)
class Cell:
    """A figure: for sorting, and for people."""

    value: float
    text: str


@dataclass(frozen=True)
class CostRow:
    """What a layer costs.

    Attributes:
        cells: a figure for each column: of each kind, each phase.
        share: of the step.
        bars: widths by phase, in percent of the widest row.
    """

    layer: str
    cells: tuple[Cell, ...]
    share: float
    bars: tuple[float, ...]


@dataclass(frozen=True)
class Costs:
    """The table of costs by layer, the dearest first.

    Attributes:
        kinds: what is counted, each by phase.
        folded: layers without operators of their own in a step: the compiler folded them into others.
        measured: whether milliseconds are among the kinds; shares are of these then, else of the target's table.
    """

    kinds: tuple[str, ...]
    rows: tuple[CostRow, ...]
    totals: Row
    folded: tuple[str, ...]
    measured: bool


@dataclass(frozen=True)
class Operators:
    """How often each operator occurs in each subgraph."""

    columns: Row
    rows: list[Row]


def parts(contents: ReportContents) -> list[Row]:
    """Return the model by layer."""
    return [
        (
            part.layer or "(no layer)",
            STATUSES[status],
            ", ".join(f"{name} ×{times}" if times > 1 else name for name, times in part.operations.items()),
            part.result,
            ", ".join(part.parameters),
            count(part.flops),
        )
        for part, status in zip(contents.account.model, contents.statuses, strict=True)
    ]


def updates(contents: ReportContents) -> list[Row]:
    """Return what trains of each weight, and why; of many weights those of several layers that are alike as one."""
    table: list[Row] = [(row.parameter, share(row.fraction), row.why) for row in contents.program.manifest.update.table]
    return [row for row, _ in fold(table)] if len(table) > _MANY else table


def resident(contents: ReportContents) -> list[Row]:
    """Return where the memory of a session is."""
    figures = contents.program.manifest.costs
    names = [f"{part}_bytes" for part in ("arena", "state", "packed", "mapped", "resident")]
    return [(COSTS[name][0], size(figures[name] or 0)) for name in names if figures.get(name) is not None]


def step(contents: ReportContents) -> list[Row]:
    """Return what a step takes as a whole: labels, the table's cost, how quickly it learns, what it reads."""
    figures, target = contents.program.manifest.costs, contents.program.manifest.target
    labels, cost, read = (figures.get(name) or 0 for name in ("labels", "step_cost", "read_bytes"))
    found: list[Row] = [("labels, which of a language model are tokens", count(labels))] if labels else []
    unit = unit_of(target)
    seconds = cost / 1e9 if unit == "ns" else None
    if seconds is None:
        found.append((f"cost by the table of {target}", amount("step_cost", cost, unit)))
    else:
        found.append((f"seconds by the table of {target}", f"{seconds:.3g}"))
        found += [("labels a second, by these", f"{labels / seconds:.3g}")] if seconds and labels else []
    return found + ([("reading", reading(read, seconds, seconds))] if read else [])


def costs(contents: ReportContents) -> Costs:
    """Return what each layer costs: FLOPs, costs by the target's table, and milliseconds where they were measured."""
    layers = contents.layers
    measured = any(layer.ms for layer in layers.values())
    kinds: list[tuple[str, Callable[[LayerCosts], dict], Callable[[float], str]]] = [
        ("FLOPs", lambda layer: layer.flops, count),
        ("cost", lambda layer: layer.costs, count),
    ]
    if measured:
        kinds.append(("ms", lambda layer: layer.ms, lambda ms: f"{ms:.3f}"))
    leading = kinds[-1][1]
    total = sum(sum(leading(layer).values()) for layer in layers.values()) or 1
    widest = max((sum(leading(layer).values()) for layer in layers.values()), default=0) or 1

    def row(name: str, layer: LayerCosts) -> CostRow:
        figures = [(of(layer).get(phase, 0), said) for _, of, said in kinds for phase in PHASES]
        return CostRow(
            name or "(compiler)",
            tuple(Cell(value, said(value) if value else "") for value, said in figures),
            sum(leading(layer).values()) / total,
            tuple(round(100 * leading(layer).get(phase, 0) / widest, 2) for phase in PHASES),
        )

    rows = [row(name, layer) for name, layer in layers.items()]
    return Costs(
        tuple(label for label, _, _ in kinds),
        tuple(sorted((r for r in rows if any(c.value for c in r.cells)), key=lambda r: r.share, reverse=True)),
        tuple(said(sum(of(each).get(p, 0) for each in layers.values())) for _, of, said in kinds for p in PHASES),
        tuple(r.layer for r, name in zip(rows, layers, strict=True) if name and not any(c.value for c in r.cells)),
        measured,
    )


def forms(contents: ReportContents) -> list[Row]:
    """Return the forms that were chosen; equal choices in one row."""
    return form_rows(choice for choice in contents.account.forms if choice.alternatives)


def signatures(contents: ReportContents) -> list[Row]:
    """Return inputs and outputs of each signature; state and gradients are one line."""
    manifest = contents.program.manifest
    return [
        (name, side, *line)
        for name, signature in manifest.signatures.items()
        for side, specs in (("in", signature.inputs), ("out", signature.outputs))
        for line in _tensors(specs)
    ]


def _tensors(specs: Sequence[TensorSpec]) -> Iterable[Row]:
    many = ("state", "gradient")
    yield from ((spec.name, str(spec), spec.role) for spec in specs if spec.role not in many)
    for role, number in Counter(spec.role for spec in specs if spec.role in many).items():
        yield counted(number, "tensor"), "", role


def operators(contents: ReportContents) -> Operators:
    """Return operators by subgraph, those of loops with who runs them; the most frequent first."""
    whole: dict[str, Counter[str]] = {}
    for name, kinds in contents.operators.items():
        whole.setdefault(name.partition("/")[0], Counter()).update(kinds)
    totals = sum(whole.values(), Counter[str]())
    rows: list[Row] = [(kind, *(str(used[kind] or "") for used in whole.values())) for kind, _ in totals.most_common()]
    rows.append(("total", *(str(used.total()) for used in whole.values())))
    return Operators(("operator", *whole), rows)


def state_tensors(contents: ReportContents) -> list[Row]:
    """Return what outlives a step."""
    return [
        (
            tensor.tensor,
            f"{tensor.dtype}{list(tensor.shape)}",
            size(prod(tensor.shape) * np.dtype(tensor.dtype).itemsize),
            "slot of the optimizer" if tensor.slot or tensor.tensor == LOSS_OF_STEP else "trained",
        )
        for tensor in contents.program.manifest.state_tensors
    ]
