"""A target's table with measured figures in place of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

#: A figure of a table: `"batch_matmul" = 0.0163`.
FIGURE = re.compile(r'"(.+)" = .*')


def fitted(table: str, measured: Mapping[str, float], path: Path, unit: str, machine: str) -> str:
    """The table as text; figures that were not measured stay as they are.

    Args:
        table: the text of a table of `converter/targets`.
        measured: cost of one multiply-accumulate or byte by form, as `forms.py` names them.
        path: where the table will lie; it is the target's name in programs.
        unit: of the figures, `ns` or `instructions`.
        machine: where they were measured.
    """
    costs, description = dict(measured), f"{unit}, one thread, on {machine}"
    for place in ("", " beyond"):
        both, compare = costs.get(f"compare + select{place}"), costs.get(f"compare{place}")
        if both is not None and compare is not None:
            # Measured together: of 3.5 bytes for each of the operand, 1.25 are the comparison's.
            costs[f"select{place}"] = max((3.5 * both - 1.25 * compare) / 2.25, 0.1 * both)
    lines, section = [f"# Written by scripts/bench/forms.py: {description}."], ""
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("["):
            section = line
        found = FIGURE.fullmatch(line)
        if found is not None:
            form = found[1] + (" beyond" if section == "[per_byte_beyond]" else "")
            line = f'"{found[1]}" = {costs[form]:.5g}' if form in costs else line
        elif line.startswith("name = "):
            line = f'name = "{path.stem}"'
        elif line.startswith("unit = "):
            line = f'unit = "{unit}"'
        elif line.startswith("description = "):
            line = f'description = "{description}"'
        lines.append(line)
    return "\n".join(lines) + "\n"
