"""Exported file of a trained `.tflite` model: the author's own, as far as it is known before weights are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from converter.frontends.source import FileExport
from converter.frontends.tflite.graft import Graft
from converter.frontends.tflite.metadata import label_file_of, with_labels
from converter.frontends.tflite.model import Model
from converter.frontends.tflite.reading.file import File, needed
from converter.frontends.tflite.splice import assembly_of_graft
from converter.ir import Graph
from converter.program.flatbuffer.buffers import Buffers
from converter.support.notes import Note


class ExportedFile(FileExport):
    """A file in which trained weights and fresh layers stand where others stood."""

    def __init__(self, model: Model, made: Graft, labels: Sequence[str] | None, classes: int) -> None:
        """Find what is to say of it.

        Args:
            model: what was built.
            made: what stays of the file.
            labels: names of the classes; None: not asked for.
            classes: how many numbers the model's first output has.
        """
        file, missing = _with_labels(model, made, labels, classes)
        self._graft = replace(made, file=file)
        self.graph = made.graph
        self.notes = [*_of_outputs(model, made), *_of_custom_operators(made), *missing]

    def assembly(self, suffix: Graph | None, program: Buffers) -> bytes:
        return assembly_of_graft(self._graft, suffix, program)


def _of_outputs(model: Model, made: Graft) -> Iterator[Note]:
    """Yield what to say of the outputs of the exported file."""
    if made.lost:
        names = [name for name, number in made.file.outputs.items() if number in made.lost]
        said = "they are made of integers that became real numbers, by operators that only the runtime knows"
        yield Note(", ".join(names), "left out of the exported file", said)
    asked = set() if made.replaced is not None else set(model.chosen(made.file).values())
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


def _with_labels(model: Model, made: Graft, asked: Sequence[str] | None, classes: int) -> tuple[File, list[Note]]:
    """Return the file with the names of the classes that are asked for, or those of a fresh head; and what is missing.

    Without names a fresh head has numbers, where the file has a list.
    """
    file = made.file
    numbers = [made.replaced] if made.replaced is not None else list(model.chosen(file).values())
    if len(numbers) != 1 or (asked is None and made.replaced is None):
        return file, []
    place = list(file.outputs.values()).index(numbers[0])
    if asked is None:
        numbered = [str(i) for i in range(classes)]
        return (file if label_file_of(file, place) is None else with_labels(file, place, numbered) or file), []
    named = with_labels(file, place, asked)
    if named is not None:
        return named, []
    said = "its metadata has no list of labels for this output: the app finds them in the program's manifest"
    return file, [Note("labels", "not in the exported file", said)]
