"""Models read from a file: its own operators before the first trained layer, and the exported file."""

from __future__ import annotations

from dataclasses import replace

from converter.backend.stages import in_order, to_builtins
from converter.backend.targets import target
from converter.driver.compilation import Compilation, Grafted
from converter.driver.plain.any_rows import FixedRows, for_any_rows, held_to_its_rows
from converter.frontends.source import ModelFile
from converter.ir import Graph
from converter.passes.canonical import canonicalize, specialize
from converter.support.errors import PocketuneError, UnsupportedError
from converter.support.notes import Note
from converter.training.dropout import without_dropout
from converter.training.schemes import SkipLoRA


def carry_over(c: Compilation) -> Compilation:
    """Let the program begin with the file's own operators, up to the first that trains."""
    file = c.source.file
    if file is None:
        return c
    notes = list(c.notes)
    if not c.target.is_cpu:
        _check_fed(c)
        model, probed, count = file.computed(c.graphs.model), file.computed(c.graphs.probed), 0
        if file.is_quantized:
            said = f"{c.target.name} runs no integer operators: close to the file's numbers, not equal to the bit"
            notes.append(Note("quantised layers", "in float32", said))
    else:
        (model, count), (probed, _) = file.carried(c.graphs.model), file.carried(c.graphs.probed)
    if count:
        notes.append(Note(f"{count} operators", "as in the file", "nothing before them trains: equal to the last bit"))
    rows = [
        replace(row, why=f"{row.why}; integers in the file, float32 here")
        if row.fraction and row.parameter in file.integers
        else row
        for row in c.rows
    ]
    return replace(c.staged(model=model, probed=probed), rows=rows, notes=notes)


def _check_fed(c: Compilation) -> None:
    """Raise UnsupportedError where the engine has no kernel that reads the integers that the file is fed."""
    for value in c.graphs.model.inputs:
        if value.type.quantization is not None and not c.target.is_cpu:  # DEQUANTIZE is theirs of constants alone
            raise UnsupportedError(
                f"the file takes {value.dtype.name} as {value.name}, and {c.target.name} computes on float32 alone. "
                "Build for a CPU (target=), or take a file with float inputs, as converters write on request",
                page="tflite-files",
            )


def graft(c: Compilation) -> Compilation:
    """Find what of the file stays when its weights are trained, and lower what is computed again."""
    file = c.source.file
    if file is None or not c.offers("infer"):
        return c
    ways = any(isinstance(row.adapter, SkipLoRA) for row in c.resolved)
    if ways or c.options.head_reads is not None:
        place = "ways to its logits" if ways else "more inputs of its last layer"
        said = f"the file has no place for {place}: what is exported is the model of this program"
        return replace(c, notes=[*c.notes, Note("exported model", "not the file itself", said)])
    trained = {p.name for p in c.graphs.model.parameters.values() if p.kind in ("weight", "statistic")}
    trained |= {adapter.weight for adapter in c.adapters}
    made = file.export(trained, c.options.labels, next(iter(c.source.graph.outputs.values())).shape[-1])
    notes = [*c.notes, *made.notes]
    halves = c.options.frozen == "float16" and not file.has_float16
    if c.graphs.prefix is not None or halves or c.options.is_int4:
        said = "the exported file keeps those of the file: near what infer gives here, not its bits"
        notes.append(Note("frozen layers", f"{c.options.frozen} here", said))
    if made.graph is None:
        return replace(c, grafted=Grafted(made, None), notes=notes)
    try:
        suffix, fixed = _for_any_rows(c, file, trained), None
    except (PocketuneError, FixedRows) as problem:
        fixed = next(iter(str(problem).splitlines()), "")
        suffix = held_to_its_rows(_lowered(c, made.graph))
        said = f"{fixed}: inputs that are resized to others than the file's are refused"
        notes.append(Note("exported model", "takes the file's rows", said))
    return replace(c, grafted=Grafted(made, suffix, fixed), notes=notes)


def _for_any_rows(c: Compilation, file: ModelFile, trained: set[str]) -> Graph | None:
    """Return what is computed again, for any number of rows. Raises FixedRows, or the file's error, where it cannot."""
    graph = file.computed_anew(trained, 2)
    return None if graph is None else for_any_rows(_lowered(c, graph))


def _lowered(c: Compilation, graph: Graph) -> Graph:
    """Return the builtins of a graph; after integers, which the file's own operators make, those of a CPU."""
    of_integers = any(value.type.quantization is not None for value in graph.inputs)
    on, order = (target("litert-2"), target("litert-2")) if of_integers and not c.target.is_cpu else (c.once, c.target)
    return in_order(to_builtins(specialize(canonicalize(without_dropout(graph))), on), order)
