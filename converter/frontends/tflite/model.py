"""A TFLite file as a model: the part to use, its shapes, and the replacement of its head."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from converter.frontends.imported import Imported
from converter.frontends.source import Words
from converter.frontends.tflite.graft import Graft, Replaced, grafted
from converter.frontends.tflite.head import Place, fresh_layer, own_head, place_of_last_layer, places_of
from converter.frontends.tflite.importer import Importer
from converter.frontends.tflite.metadata import card_of, labels_of, preprocessing_of
from converter.frontends.tflite.original import Carrier
from converter.frontends.tflite.ranges import holds_shares
from converter.frontends.tflite.reading.file import File, needed, read_file, reading
from converter.frontends.tflite.savedmodel import converted, is_of_tensorflow, is_saved_model, saved
from converter.ir import Builder, Graph, TensorType, Value, ops, verify
from converter.ir.rewrite import eliminate_dead_code
from converter.passes.idioms import with_idioms
from converter.support.errors import NotImportable, UnsupportedError, UsageError, nearest
from converter.support.invocation import command
from converter.support.notes import Note
from converter.training.batch_dependence import mixing


def is_tflite(model: Any) -> bool:
    """Return whether something is read as a file: the path of a TFLite file or of a SavedModel, or a tf.Module."""
    is_file = isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".tflite")
    return is_file or is_saved_model(model) or (is_of_tensorflow(model) and not hasattr(model, "stateless_call"))


@dataclass(frozen=True, kw_only=True)
class ImportedFile(Imported):
    """A file that was read for a number of rows.

    Attributes:
        carrier: what carries the file's own operators over.
        features: the type of the tensor to which it was cut.
        words: names of the classes of its output, how its first input is made, and its card, where the file says them.
    """

    carrier: Carrier
    features: TensorType | None
    words: Words


class _Read(NamedTuple):
    """A file as far as it was read for a model.

    Attributes:
        importer: what read it.
        outputs: of the model by name.
        replaced: what stands in the place of an output of the file.
        notes: what to say of it.
        features: the type of the tensor to which it was cut.
    """

    importer: Importer
    outputs: Mapping[str, Value]
    replaced: Replaced | None
    notes: list[Note]
    features: TensorType | None = None


@dataclass(frozen=True)
class Model:
    """A TFLite file that is to be trained.

    Attributes:
        path: of the file; of a SavedModel, or a live model of TensorFlow, which its converter makes a file of (extra
            `tensorflow`).
        signature: which of its signatures; None: the only one.
        shapes: of inputs by name, for one row, where the file leaves axes open.
        cut: the name of a tensor or layer; what stands after it is left out.
        classes: a fresh dense layer of so many classes stands in the place of the last one, or after `cut`, where it
            reads the mean over the places of a map or sequence.
        head: what stands after `cut` instead of a dense layer: a `pocketune.Model` of a JAX function, whose `inputs`
            may be left out, a module of Flax or Equinox, a Keras model, layer or list of layers.
        outputs: the names of the outputs that are kept; None: all.
        seed: of the fresh layer.
    """

    path: Any
    signature: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cut: str | None = None
    classes: int | None = None
    head: Any = None
    outputs: Sequence[str] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if is_of_tensorflow(self.path):
            object.__setattr__(self, "path", saved(self.path))
        if self.classes is not None and not (isinstance(self.classes, int) and self.classes > 0):
            raise UsageError(f"classes must be a whole number of at least 1, got {self.classes!r}", page="tflite-files")
        if self.head is not None and (self.cut is None or self.classes is not None):
            raise UsageError(
                "a head of your own needs the tensor or layer that it reads, cut=, and no classes=",
                page="tflite-files",
            )

    @property
    def name(self) -> str:
        """What programs of it are called."""
        return Path(self.path).stem

    def graph(self, rows: int) -> tuple[Graph, list[Note]]:
        """Return the forward graph for a number of rows, and what to say of it; see `imported`."""
        made = self.imported(rows)
        return made.graph, list(made.notes)

    def imported(self, rows: int) -> ImportedFile:
        """Return the model for a number of rows.

        Raises:
            UsageError: the file cannot be read, or has no such tensor, layer, signature or last layer.
            UnsupportedError: it holds what cannot be imported.
        """
        file = self.file()
        try:
            with reading(file.path):
                return self._imported(file, rows)
        except NotImportable as problem:  # an output that is no result of an operator
            raise UnsupportedError(f"{file.path}: {problem.what}", page="tflite-files") from None

    def file(self) -> File:
        """Return the file, read. Raise UsageError where it cannot be, or TensorFlow makes none of a SavedModel."""
        path = converted(self.path, self.signature) if is_saved_model(self.path) else self.path
        return read_file(path, self.signature)

    def graft(self, trained: Collection[str], rows: int) -> Graft:
        """Return what stays of the file when some parameters are trained, for the rows that the file is for, or others.

        Args:
            trained: names of parameters.
            rows: of inputs that are of one row, or open, in the file.
        """
        read = self._read(self.file(), rows)
        return grafted(read.importer, read.replaced, trained)

    def _imported(self, file: File, rows: int) -> ImportedFile:
        read = self._read(file, rows)
        importer, graph = read.importer, read.importer.b.graph
        graph.outputs = dict(read.outputs)
        if rows == 1:
            graph.outputs = {n: _with_row(importer.b, v) for n, v in graph.outputs.items()}
        graph = eliminate_dead_code(graph)
        _check_rows(graph, rows, file)
        notes = [*read.notes, *_what_is_fed(graph), *importer.notes]
        used = {v for node in graph.nodes for v in node.inputs}
        graph.parameters = {v: p for v, p in graph.parameters.items() if v in used}
        names = None
        if read.replaced is None and len(read.outputs) == 1:
            (number,) = self.chosen(file).values()
            names = labels_of(file, list(file.outputs.values()).index(number))
        made = with_idioms(verify(graph, "import"))
        return ImportedFile(
            graph=made,
            notes=notes,
            carrier=importer.carrier(),
            features=read.features,
            words=Words(names, preprocessing_of(file), card_of(file)),
        )

    def _read(self, file: File, rows: int) -> _Read:
        """Import what the model is of the file."""
        importer = Importer(file, rows, self.shapes)
        if self.classes is not None:
            place = self.place(file)
            importer.run([place.features])
            fresh = fresh_layer(importer, place, self.classes, self.seed)
            number = self._output_after(file, place.features)
            in_range = (bool(place.link) or self.classes == 1) and holds_shares(file.tensors[number])
            behind = " with sigmoid" if self.classes == 1 else " with softmax" if place.link else ""
            said = f"a fresh dense layer of {self.classes} classes{behind}, in the place of {place.replaced}"
            if place.pools and (pooled := places_of(importer.value(place.features).shape)):
                said += f"; it reads the mean over {pooled} places (for all of their numbers give a head, head=)"
            elif around := places_of(fresh.shape):
                said += f"; at each of {around} places, so labels are {list(fresh.shape[:-1])}: for one a row give cut="
            note = Note("head", "fresh", said)
            return _Read(importer, {"output": fresh}, Replaced(number, fresh, in_range), [note])
        if self.cut is not None:
            number = _tensor(file, self.cut)
            importer.run([number])
            value = features = importer.value(number)
            if self.head is not None:
                value = own_head(importer, features, self.head)
            replaced = Replaced(self._output_after(file, number), value, in_range=False)
            return _Read(importer, {"output": value}, replaced, [], features.type)
        chosen = self.chosen(file)
        importer.run(list(chosen.values()))
        names = ["output"] if len(chosen) == 1 else list(chosen)
        outputs = {n: importer.value(i) for n, i in zip(names, chosen.values(), strict=True)}
        return _Read(importer, outputs, None, [])

    def _output_after(self, file: File, number: int) -> int:
        """Return the first output that depends on a tensor, in whose place the model's own stands; else the first."""
        numbers = list(self.chosen(file).values())
        if self.cut is None:
            return numbers[0]
        behind = (i for i in numbers if i == number or any(number in o.inputs for o in needed(file, [i])))
        return next(behind, numbers[0])

    def place(self, file: File) -> Place:
        """Return where the fresh layer stands. Raise UsageError where there is no such place."""
        if self.cut is not None:
            return Place(_tensor(file, self.cut), f"what stood behind {self.cut}", "SOFTMAX", pools=True)
        name, output = next(iter(self.chosen(file).items()))
        return place_of_last_layer(file, output, name)

    def chosen(self, file: File) -> dict[str, int]:
        """Return the tensors of the outputs that are kept, by name. Raise UsageError where the file has no such."""
        if self.outputs is None:
            return dict(file.outputs)
        for name in self.outputs:
            if name not in file.outputs:
                raise UsageError(
                    f"{file.path} has no output {name!r}.{nearest(name, file.outputs)} It has "
                    f"{', '.join(file.outputs)}",
                    page="tflite-files",
                )
        return {name: file.outputs[name] for name in self.outputs}


def independent_rows(graph: Graph, rows: int = 2) -> Graph:
    """Return what a graph of one row would be for several, of which nothing is known but that each is on its own."""
    b, made_by = Builder(), graph.producers()
    fed = [b.input(v.name, v.type.with_shape((rows, *v.shape[1:]))) for v in graph.inputs]
    types = tuple(v.type.with_shape((rows, *v.shape[1:])) for v in graph.outputs.values())
    made = b.node(ops.Foreign("each row", -1, types), *fed).outputs
    for (name, before), after in zip(graph.outputs.items(), made, strict=True):
        link = made_by[before].op if before in made_by else None
        b.graph.outputs[name] = b(link, after) if isinstance(link, ops.Softmax | ops.Logistic) else after
    return b.graph


def _tensor(file: File, name: str) -> int:
    """Return the tensor of a name, or what the last operator of a layer makes."""
    computed = {number: operator for operator in file.operators for number in operator.outputs}
    by_name = {file.tensors[number].name: number for number in computed}
    if name in file.outputs:
        return file.outputs[name]
    if name in by_name:
        return by_name[name]
    layers = {file.layer(number): number for number in computed}  # the last of each
    wanted = name.strip("/")
    if (number := layers.get(wanted, layers.get(wanted.removeprefix(file.folders)))) is not None:
        return number
    raise UsageError(
        f"{file.path} has no tensor or layer {name!r}.{nearest(name, [*by_name, *layers])} All of them, and good "
        f"places to cut: {command(f'inspect {quote(file.path)}')}",
        page="tflite-files",
    )


def _what_is_fed(graph: Graph) -> list[Note]:
    """Return for each input of integers that stand for numbers how they do: the app feeds what it feeds the file."""
    notes = []
    for value in graph.inputs:
        if (of := value.type.quantization) is not None:
            said = f"round(real / {of.scale:.9g}) {of.zero_point:+d}, as the file takes it"
            notes.append(Note(value.name, f"fed as {value.dtype.name}", said))
    return notes


def _with_row(b: Builder, value: Value) -> Value:
    """Return the output of one row with an axis for it, which the file may have left out."""
    return value if value.shape[:1] == (1,) else b.reshape(value, (1, *value.shape))


def _check_rows(graph: Graph, rows: int, file: File) -> None:
    """Raise UsageError where rows are not apart: a file for one row may hold it in places where several do not fit."""
    advice = "the file mixes its rows, or is for one at a time. Train with batch=1, or cut= before that"
    if rows > 1 and (place := mixing(graph, graph.outputs.values())) is not None:
        raise UsageError(f"{file.path}: {place}: {advice}", page="tflite-files")
    for name, value in graph.outputs.items():
        if not value.shape or value.shape[0] != rows:
            raise UsageError(
                f"{file.path}: {name} has {list(value.shape)} for {rows} rows: {advice}", page="tflite-files"
            )
