"""Operators of the file that a model was read from, where all in front of them is frozen: they are carried over."""

from __future__ import annotations

from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.support.notes import Note
from tflite_frontend.carry import without_foreign, without_marks


def carry_over(c: Compilation) -> Compilation:
    """Let the program begin with the file's own operators, up to the first that trains."""
    carrier = c.source.carrier
    if carrier is None:
        return c
    notes = list(c.notes)
    if not c.target.is_cpu:
        model, probed, count = *(without_foreign(without_marks(g), carrier.file.path) for g in (c.model, c.probed)), 0
        if carrier.is_quantized:
            said = f"{c.target.name} runs no operators on integers: near the file's numbers, not its bits"
            notes.append(Note("quantised layers", "in float32", said))
    else:
        (model, count), (probed, _) = carrier.carried(c.model), carrier.carried(c.probed)
    if count:
        notes.append(
            Note(f"{count} operators", "as in the file", "nothing in front of them trains: to the bit the same")
        )
    rows = [
        replace(row, why=f"{row.why}; integers in the file, float32 here")
        if row.fraction and row.parameter in carrier.integers
        else row
        for row in c.rows
    ]
    return replace(c, model=model, probed=probed, rows=rows, notes=notes)
