"""Front end of TFLite: files, SavedModels and live models of TensorFlow, whose own operators stay where none trains."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from converter.frontends.protocol import FrontEnd, Others, check_inputs, check_said_once
from converter.frontends.source import Defaults, FileExport, ModelFile, Source
from converter.frontends.tflite.exported import ExportedFile
from converter.frontends.tflite.head_names import with_names_of_head
from converter.frontends.tflite.model import ImportedFile, Model, independent_rows, is_tflite
from converter.frontends.tflite.original import Carrier, without_foreign, without_marks
from converter.frontends.tflite.reading.file import reading
from converter.ir import Graph, TensorType
from converter.support.errors import UsageError


@dataclass(frozen=True, eq=False)
class TFLiteFile(ModelFile):
    """The file of a model.

    Attributes:
        model: which part of it is meant.
        carrier: what carries its operators over.
    """

    model: Model
    carrier: Carrier

    @property
    def integers(self) -> Collection[str]:
        return self.carrier.integers

    @property
    def is_quantized(self) -> bool:
        return self.carrier.is_quantized

    @property
    def has_float16(self) -> bool:
        return self.carrier.file.has_float16

    def carried(self, graph: Graph) -> tuple[Graph, int]:
        return self.carrier.carried(graph)

    def computed(self, graph: Graph) -> Graph:
        return without_foreign(without_marks(graph), self.carrier.file.path)

    def independent_rows(self, graph: Graph) -> Graph:
        return independent_rows(graph)

    def export(self, trained: Collection[str], labels: Sequence[str] | None, classes: int) -> FileExport:
        with reading(os.fspath(self.model.path)):
            return ExportedFile(self.model, self.model.graft(trained, 1), labels, classes)

    def computed_anew(self, trained: Collection[str], rows: int) -> Graph | None:
        return self.model.graft(trained, rows).graph


@dataclass(frozen=True, eq=False)
class _Head:
    """A head of one's own after a tensor of a file.

    Attributes:
        model: what the user passed.
        others: imports it.
        known: what was imported of it, by the shape of what it reads.
    """

    model: Any
    others: Others
    known: dict[tuple[int, ...], Source] = field(default_factory=dict)

    def graph(self, features: TensorType) -> Graph:
        """Return its forward graph."""
        return self.source(features).graph

    def source(self, features: TensorType) -> Source:
        """Return it imported for such features, its parameters called `head/...`."""
        if features.shape not in self.known:
            self.known[features.shape] = with_names_of_head(self.others(self.model, features))
        return self.known[features.shape]


class TFLiteFrontEnd(FrontEnd):
    """Imports TFLite files, and leaves heads of one's own to the others."""

    options = ("classes", "cut", "outputs")

    def takes(self, model: Any) -> bool:
        return isinstance(model, Model) or is_tflite(model)

    def opened(self, model: Any) -> Model:
        return model if isinstance(model, Model) else Model(model)

    def with_inputs(self, model: Any, inputs: Any) -> Any:
        check_inputs(inputs)
        raise UsageError(
            f"inputs: {model} says what it takes; leave it out, or say of axes that it leaves open how long they are: "
            "pocketune.TFLiteModel(path, shapes={'input': (28, 28, 1)})",
            page="models",
        )

    def with_options(self, model: Any, asked: Mapping[str, Any]) -> Model:
        model = self.opened(model)
        check_said_once(model, asked)
        return replace(model, **asked)

    def source(self, model: Model, rows: int, others: Others) -> Source:
        if model.head is not None:
            return self._with_head(model, rows, others)
        made = model.imported(rows)
        return replace(_own(model, made), defaults=Defaults(optimizer="adam"), words=made.words)

    def _with_head(self, model: Model, rows: int, others: Others) -> Source:
        """Return a file after which a head of one's own stands, with all that the head says of itself."""
        head = model.head if isinstance(model.head, _Head) else _Head(model.head, others)
        model = replace(model, head=head)
        made = model.imported(rows)
        assert made.features is not None
        of_head, of_file = head.source(made.features), _own(model, made)
        return replace(
            of_head,
            graph=of_file.graph,
            name=of_file.name,
            notes=[*of_file.notes, *of_head.notes],
            defaults=replace(of_head.defaults, optimizer="adam"),
            file=of_file.file,
            words=replace(made.words, labels=of_head.words.labels),
        )


def _own(model: Model, made: ImportedFile) -> Source:
    """Return what a file says itself."""
    return Source(made.graph, model.name, notes=made.notes, file=TFLiteFile(model, made.carrier))


FRONT_END = TFLiteFrontEnd()
