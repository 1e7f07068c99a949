"""Front end of Keras: live models or files, their compile settings, and losses of `keras.losses`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from converter.frontends.keras import import_keras
from converter.frontends.protocol import FrontEnd, Others, check_inputs
from converter.frontends.source import Defaults, Library, Regularization, Source
from converter.ir import TensorType, Value
from converter.support.libraries import is_defined_in, is_instance, loaded
from converter.training.losses import Loss


class Shaped(NamedTuple):
    """A Keras model, live or its path, and what it takes.

    Attributes:
        model: the model.
        inputs: shape and dtype of each input, the first axis the batch; None where the model says it.
    """

    model: Any
    inputs: Sequence[Any] | None = None


class KerasLibrary(Library):
    """Reads losses of Keras; its optimizers only as a model was compiled with one."""

    title = "Keras"

    def loss(self, loss: Any, outputs: Mapping[str, Value], targets: Any, own: bool) -> Loss | None:
        if not (is_instance(loss, "keras.losses", "Loss") or is_defined_in(loss, loaded("keras"))):
            return None
        from converter.frontends.keras.compiled import loss_of

        return loss_of(loss)


class KerasFrontEnd(FrontEnd):
    """Imports models of Keras, and says of any path that nothing takes what a file must be."""

    takes_layers = True
    library = KerasLibrary()

    def takes(self, model: Any) -> bool:
        return isinstance(model, str | os.PathLike) or is_instance(model, "keras", "Layer")

    def opened(self, model: Any) -> Shaped:
        return model if isinstance(model, Shaped) else Shaped(model)

    def with_inputs(self, model: Any, inputs: Any) -> Shaped:
        return Shaped(model, check_inputs(inputs))

    def suffix(self, model: Any, features: TensorType) -> Shaped:
        from converter.frontends.keras.stack import as_model

        return Shaped(as_model(model, features.shape[1:]))

    def augmentation(self, model: Any) -> Callable[[Any, Any], Any]:
        from converter.frontends.keras.augmentation import own_augmentation

        return own_augmentation(model.model if isinstance(model, Shaped) else model)

    def source(self, model: Shaped, rows: int, others: Others) -> Source:
        from converter.frontends.keras.compiled import read_compiled

        given = model.model
        made = import_keras(given, rows, model.inputs)
        return Source(
            made.graph,
            Path(given).stem if isinstance(given, str | os.PathLike) else str(given.name),
            notes=made.notes,
            defaults=Defaults(read_compiled(made.compiled, list(made.graph.outputs))),
            regularization=Regularization(made.penalties, made.constraints),
            batch_norms=made.batch_norms,
            library=self.library,
            interface=made.interface,
        )


FRONT_END = KerasFrontEnd()
