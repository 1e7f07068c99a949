"""Models that were read from a file: its own operators in front of what trains, and the file that is exported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from converter.driver.compilation import Compilation, Grafted
from converter.driver.plain.any_rows import for_any_rows
from converter.frontends.tflite.carry import without_foreign, without_marks
from converter.frontends.tflite.file import File, needed, reading
from converter.frontends.tflite.graft import Graft
from converter.frontends.tflite.metadata import label_file_of, with_labels
from converter.ir import Graph
from converter.passes.canonical import canonicalize, specialize
from converter.support.errors import PocketuneError, UnsupportedError
from converter.support.notes import Note
from converter.tflite.backend import in_order, to_builtins
from converter.tflite.targets import target
from converter.training.dropout import without_dropout


def carry_over(c: Compilation) -> Compilation:
    """Let the program begin with the file's own operators, up to the first that trains."""
    carrier = c.source.carrier
    if carrier is None:
        return c
    notes = list(c.notes)
    if not c.target.is_cpu:
        _check_fed(c)
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


def _check_fed(c: Compilation) -> None:
    """Raise UnsupportedError where the engine has no kernel that reads the integers that the file is fed."""
    for value in c.model.inputs:
        if value.type.quantization is not None and not c.target.is_cpu:  # DEQUANTIZE is theirs of constants alone
            raise UnsupportedError(
                f"the file takes {value.dtype.name} as {value.name}, and {c.target.name} computes on float32 alone. "
                "Build for a CPU (target=), or take a file with float inputs, as converters write on request",
                page="tflite-files",
            )


def graft(c: Compilation) -> Compilation:
    """Find what of the file stays when its weights are trained, and lower what is computed anew."""
    model = c.source.tflite
    if model is None or not c.offers("infer"):
        return c
    trained = {p.name for p in c.model.parameters.values() if p.kind in ("weight", "statistic")}
    trained |= {adapter.weight for adapter in c.adapters}
    with reading(os.fspath(model.path)):
        made = model.graft(trained, 1)
        file, missing = _with_labels(c, made)
    notes = [*c.notes, *_of_outputs(c, made), *_of_custom_operators(made), *missing]
    halves = c.options.frozen == "float16" and not made.file.has_float16
    if c.prefix is not None or halves or c.options.is_int4:
        said = "the exported file keeps those of the file: near what infer gives here, not its bits"
        notes.append(Note("frozen layers", f"{c.options.frozen} here", said))
    behind = None if made.graph is None else _for_any_rows(c, trained) or _lowered(c, made.graph)
    return replace(c, grafted=Grafted(replace(made, file=file), behind), notes=notes)


def _of_outputs(c: Compilation, made: Graft) -> Iterator[Note]:
    """Yield what to say of the outputs of the exported file."""
    assert c.source.tflite is not None
    if made.lost:
        names = [name for name, number in made.file.outputs.items() if number in made.lost]
        said = "they are made of integers that became real numbers, by operators that only the runtime knows"
        yield Note(", ".join(names), "left out of the exported file", said)
    asked = set() if made.replaced is not None else set(c.source.tflite.chosen(made.file).values())
    if made.rounding:
        said = "the kernels of the exported file round what these read, as the file's own do: near infer, not its bits"
        yield Note(", ".join(made.rounding), "integers in the exported file", said)
    if others := [name for name, number in made.file.outputs.items() if number in {*made.reached} - asked]:
        said = "they are computed with what trains, and no loss holds them: export for an app that does not read them"
        yield Note(", ".join(others), "change too", f"{said}, or train less (head)")


def _of_custom_operators(made: Graft) -> Iterator[Note]:
    """Yield which custom operators the exported file has, which is exported for the app that has their code."""
    kept = [n for n in made.file.outputs.values() if n not in made.lost and n != made.replaced]
    if kinds := sorted({operator.kind for operator in needed(made.file, kept) if operator.is_custom}):
        said = "the exported file runs where the file itself does, in a runtime that has them"
        yield Note(", ".join(kinds), "custom operators", said)


def _with_labels(c: Compilation, made: Graft) -> tuple[File, list[Note]]:
    """Return the file with the names of the classes that are asked for, or those of a fresh head; and what is missing.

    Without names a fresh head has numbers, where the file has a list.
    """
    assert c.source.tflite is not None
    file, asked = made.file, c.options.labels
    numbers = [made.replaced] if made.replaced is not None else list(c.source.tflite.chosen(file).values())
    if len(numbers) != 1 or (asked is None and made.replaced is None):
        return file, []
    place = list(file.outputs.values()).index(numbers[0])
    if asked is None:
        width = next(iter(c.source.graph.outputs.values())).shape[-1]
        numbered = [str(i) for i in range(width)]
        return (file if label_file_of(file, place) is None else with_labels(file, place, numbered) or file), []
    named = with_labels(file, place, asked)
    if named is not None:
        return named, []
    said = "its metadata has no list of labels for this output: the app finds them in the program's manifest"
    return file, [Note("labels", "not in the exported file", said)]


def _for_any_rows(c: Compilation, trained: set[str]) -> Graph | None:
    """Return what is computed anew, for as many rows as there are; None where it is for those of the file alone."""
    assert c.source.tflite is not None
    try:
        graph = c.source.tflite.graft(trained, 2).graph
    except PocketuneError:
        return None
    return None if graph is None else for_any_rows(_lowered(c, graph))


def _lowered(c: Compilation, graph: Graph) -> Graph:
    """Return the builtins of a graph; behind integers, which the file's own operators make, those of a CPU."""
    of_integers = any(value.type.quantization is not None for value in graph.inputs)
    on, order = (target("litert-2"), target("litert-2")) if of_integers and not c.target.is_cpu else (c.once, c.target)
    return in_order(to_builtins(specialize(canonicalize(without_dropout(graph))), on), order)
