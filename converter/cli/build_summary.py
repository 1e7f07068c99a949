"""Summary that `build` prints: trained weights, cost, changes to the model, the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from converter.backend.targets import unit_of
from converter.cli.commands.estimating import interval
from converter.cli.tables import Results
from converter.support.errors import UsageError
from converter.support.folding import fold
from converter.support.notes import Note
from converter.support.words import MUCH_READ, amount, count, counted, reading, size

if TYPE_CHECKING:
    from converter.driver.program import Program

#: The phone whose time is told; as ordinary as any of the catalogue.
_PHONE = "pixel-6"
#: So many names, and notes, are told; `--wide` has all.
_NAMES, _NOTES = 4, 6


def summarize(results: Results, program: Program, path: Path) -> None:
    """Print what became of a build."""
    manifest, costs = program.manifest, program.costs
    results.heading(manifest)
    rows = manifest.update.table
    training = [row.parameter for row in rows if row.fraction]
    results.line(
        f"trains  {count(costs['trained_parameters'])} numbers, in {len(training)} of {len(rows)} parameters: "
        f"{_listed(training)}"
    )
    parts = ", ".join(f"{word} {size(costs[name])}" for name, word in _MEMORY.items() if costs.get(name))
    results.line(f"memory  {size(costs['resident_bytes'])} in a session: {parts}")
    flops = sum(costs[f"flops_{part}"] for part in ("forward", "backward", "update"))
    results.line(f"step    {amount('step_cost', costs['step_cost'], unit_of(manifest.target))}, {count(flops)} FLOPs")
    if time := _time(program):
        results.line(f"time    {time}")
    if costs.get("read_bytes", 0) >= MUCH_READ:
        results.line(f"        {reading(costs['read_bytes'])}")
    if program.tried:
        chosen = "twice" if program.tried[-1].recompute else "once"
        results.line(
            f"budget  micro-batches of {manifest.micro_batch} rows, the forward pass {chosen}, of "
            f"{counted(len(program.tried), 'way')} that {'was' if len(program.tried) == 1 else 'were'} weighed"
        )
    if program.quantization is not None:
        forms = Counter(layer.form for layer in program.quantization.layers)
        results.line("frozen  " + ", ".join(f"{counted(number, 'layer')} {form}" for form, number in forms.items()))
        if said := program.quantization.said:
            results.line(f"        {said}")
    for line in _notes(program.notes):
        results.line(line)
    results.built(path, len(program.data))


#: Of what the memory of a session is made up.
_MEMORY = {"arena_bytes": "arena", "packed_bytes": "packed weights and operators", "state_bytes": "state"}


def _time(program: Program) -> str:
    """Return what a step takes on a phone, as `estimate` says; nothing where the target's table is of no phone."""
    from converter.tools.estimate import estimate_rows, setting

    try:
        phone, table = setting(_PHONE, program.manifest.target)
    except UsageError:
        return ""
    (row,) = estimate_rows([{"scheme": program.manifest.update.scheme, **program.costs}], phone, table, 1).rows
    assert not isinstance(row, Mapping)  # such a row is of a scheme that the model does not allow
    return f"a step takes {interval(row.step)} on one core of a {phone.title} (estimate --device: others, trainings)"


def _notes(notes: Sequence[Note]) -> Iterable[str]:
    """Yield a line for each thing that is to be known; layers of which the same is true share one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        alike.setdefault((note.status, note.why), []).append(note.subject)
    for (status, why), subjects in [*alike.items()][:_NOTES]:
        yield f"note    {_listed(subjects)}: {status}: {why}"
    if len(alike) > _NOTES:
        yield f"        {len(alike) - _NOTES} more notes, and all tables: --wide"
    else:
        yield "        all of it in tables: --wide"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _NAMES:
        names = [name for (name,), _ in fold([(name,) for name in names])]
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
