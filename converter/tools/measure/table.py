"""Target table with measured figures instead of its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from statistics import median

from converter.backend.costs.step_cost import step_cost
from converter.backend.targets import Target
from converter.tools.measure.cases import Case, graph_of

#: A figure of a table: `"batch_matmul" = 0.0163`.
_FIGURE = re.compile(r'"(.+)" = (.*)')
#: A figure that is a cost, too, and that no case measures.
_DISPATCH = re.compile(r"(per_operator|run) = (.*)")
#: What one multiply-accumulate or byte costs, by form and shape.
Figures = Mapping[str, Mapping[str, float]]


def figures(measured: Iterable[tuple[Case, float]], like: Target) -> dict[str, dict[str, float]]:
    """Return what the cases cost for each multiply-accumulate or byte, counted as a target counts them.

    Args:
        measured: cases, each with what one run of it took.
        like: its table says how tiles that are not full count.
    """
    found: dict[str, dict[str, float]] = {}
    for case, cost in measured:
        figure = like.per_mac.get(case.form)
        work = case.work if figure is None else step_cost(graph_of(case), like) / figure
        found.setdefault(case.form, {})[case.shape] = cost / work
    return found


def fitted(table: str, measured: Figures, name: str, unit: str, where: str, cache_bytes: int | None = None) -> str:
    """Return the table as text, with the median over the shapes of each form that was measured.

    Other figures stay as they are, if the unit does: else what they cost is multiplied by what the measured ones cost
    against the table's own, at the median.

    Args:
        table: the text of a table of `converter/backend/targets` that is like no other.
        measured: cost of one multiply-accumulate or byte, as `figures` gives them.
        name: of the new table's target.
        unit: of the figures, `ns` or `instructions`.
        where: what was measured on, for those who read the table.
        cache_bytes: what a core there has to itself; None: as the table says.
    """
    costs = {form: median(by_shape.values()) for form, by_shape in measured.items()}
    for place in ("", " beyond"):
        both, compare = costs.get(f"compare + select{place}"), costs.get(f"compare{place}")
        if both is not None and compare is not None:
            # Measured together: of 3.5 bytes for each of the operand, 1.25 are the comparison's.
            costs[f"select{place}"] = max((3.5 * both - 1.25 * compare) / 2.25, 0.1 * both)
    known = _known(table)
    scale = 1.0
    if tomllib.loads(table)["unit"] != unit:
        scale = median([costs[form] / cost for form, cost in known.items() if form in costs])
    description = f"{unit}, one thread, on {where}"
    lines, section = [f"# Measured by Pocketune: {description}."], ""
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("["):
            section = line
        if (found := _FIGURE.fullmatch(line)) and (form := _form(found[1], section)) in known:
            line = f'"{found[1]}" = {costs.get(form, scale * known[form]):.5g}'
        elif found := _DISPATCH.fullmatch(line):
            line = f"{found[1]} = {float(f'{scale * float(found[2]):.5g}')}"
        elif line.startswith("cache_bytes = ") and cache_bytes is not None:
            line = f"cache_bytes = {cache_bytes}"
        elif line.startswith("shared_cache_bytes = ") and cache_bytes is not None:
            line = f"shared_cache_bytes = {max(cache_bytes, tomllib.loads(line)['shared_cache_bytes'])}"
        elif line.startswith("name = "):
            line = f'name = "{name}"'
        elif line.startswith("unit = "):
            line = f'unit = "{unit}"'
        elif line.startswith("description = "):
            line = f'description = "{description}"'
        lines.append(line)
    return "\n".join(lines) + "\n"


def _known(table: str) -> dict[str, float]:
    """Return the figures that a table has, by form."""
    read = tomllib.loads(table)
    sections = ("per_mac", "per_byte", "per_byte_beyond")
    return {_form(name, f"[{section}]"): cost for section in sections for name, cost in read[section].items()}


def _form(name: str, section: str) -> str:
    return name + (" beyond" if section == "[per_byte_beyond]" else "")
