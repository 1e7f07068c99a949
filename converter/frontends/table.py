"""Table of front ends: which takes a model, by the ending of its file or the library of its class.

A front end is loaded when a model looks like one of its. What none of ours takes is shown to those that other
distributions add (the group `pocketune.frontends`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from converter.frontends.protocol import FrontEnd
from converter.frontends.refused import check_file, check_model, unknown
from converter.frontends.source import Library, Source
from converter.ir import TensorType, Value
from converter.support.libraries import loaded
from converter.support.plugins import load, plugins
from converter.training.losses import Loss

#: Entry points of other distributions: objects or classes of `FrontEnd`.
GROUP = "pocketune.frontends"


@dataclass(frozen=True)
class Row:
    """A front end of ours, and what of a model shows that it may be its.

    Attributes:
        name: of the front end.
        home: the module that holds it, as `FRONT_END`.
        suffix: of its files.
        inside: a file in its folders.
        libraries: modules, those in whose parts a class of a model or a base of it is defined.
        trains: the library whose losses and optimizers it reads.
    """

    name: str
    home: str
    suffix: str | None = None
    inside: str | None = None
    libraries: tuple[str, ...] = ()
    trains: str | None = None

    def may_take(self, model: Any) -> bool:
        """Return whether a model looks like one of its; only it knows."""
        if isinstance(model, str | os.PathLike):
            named = self.suffix is not None and str(model).endswith(self.suffix)
            return named or (self.inside is not None and (Path(model) / self.inside).is_file())
        homes = [f"{kind.__module__}." for kind in type(model).__mro__]
        return any(home.startswith(f"{library}.") for home in homes for library in self.libraries)

    @property
    def front_end(self) -> FrontEnd:
        """The front end, loaded. Raise UsageError where what it needs is not installed."""
        front_end: FrontEnd = import_module(self.home).FRONT_END
        return front_end


#: In the order in which they are asked: a Keras model is a module of PyTorch or TensorFlow too, on such a backend.
ROWS = (
    Row("keras", "converter.frontends.keras.front_end", ".keras", None, ("keras",), "keras"),
    Row("torch", "converter.frontends.torch.front_end", ".pt2", None, ("torch", "converter.frontends.torch"), "torch"),
    Row("decoder", "converter.frontends.decoder.front_end", ".gguf", "config.json", ("converter.frontends.decoder",)),
    Row(
        "tflite",
        "converter.frontends.tflite.front_end",
        ".tflite",
        "saved_model.pb",
        ("tensorflow", "converter.frontends.tflite"),
    ),
    Row("jax", "converter.frontends.jax.front_end", None, None, ("jax_frontend", "flax", "equinox")),
)
_OURS = {row.name: row for row in ROWS}
#: Whose front end says what is wrong with a path that no front end takes.
_OF_OTHER_FILES = "keras"


def front_end_of(model: Any) -> FrontEnd:
    """Return the front end that takes a model.

    Raises:
        UsageError: none does; a library is not installed; the plugin of another distribution cannot be loaded.
    """
    check_model(model)
    for row in ROWS:
        if row.may_take(model) and row.front_end.takes(model):
            return row.front_end
    for point in plugins(GROUP).values():
        if (theirs := _loaded(point)).takes(model):
            return theirs
    check_file(model)
    if isinstance(model, str | os.PathLike):
        return _OURS[_OF_OTHER_FILES].front_end
    raise unknown(model)


def named(name: str) -> FrontEnd | None:
    """Return the front end of a name; None: there is none."""
    if name in _OURS:
        return _OURS[name].front_end
    return _loaded(plugins(GROUP)[name]) if name in plugins(GROUP) else None


def suffix(model: Any, features: TensorType) -> Source:
    """Return a model of any front end, imported after a tensor of another one's.

    Args:
        model: the model, or a list of layers of one library.
        features: the type of the tensor, the first axis the rows.
    """
    front_end = front_end_of(model) if not isinstance(model, list | tuple) else _of_layers(model)
    made = front_end.suffix(model, TensorType((1, *features.shape[1:]), features.dtype))
    return front_end.source(made, features.shape[0], suffix)


def loss_of(loss: Any, outputs: Mapping[str, Value], targets: Any, own: Library | None) -> Loss | None:
    """Return what a loss of a library computes; None: it is of none, but a function of JAX.

    Args:
        loss: an object or a function.
        outputs: the model's outputs by name.
        targets: what the user says of y.
        own: the library of the model.
    """
    read = (library.loss(loss, outputs, targets, library is own) for library in _libraries(own))
    return next((made for made in read if made is not None), None)


def of_classes(loss: Any, before: int, classes: int, own: Library | None) -> Any:
    """Return a loss of any library, or none, as it is of another number of classes; arguments as of `Library`'s."""
    for library in _libraries(own):
        loss = library.of_classes(loss, before, classes)
    return loss


def reader_of(optimizer: Any, own: Library | None = None) -> Library | None:
    """Return the library whose optimizer something is; None: it is a name, or one of optax.

    Args:
        optimizer: anything.
        own: the library of the model.
    """
    if optimizer is None or isinstance(optimizer, str):
        return None
    return next((library for library in _libraries(own) if library.reads(optimizer)), None)


def _libraries(own: Library | None) -> Iterator[Library]:
    """Yield the libraries that this process has loaded; in its place that of a model, which knows its parameters."""
    for row in ROWS:
        if row.trains is None or loaded(row.trains) is None or (library := row.front_end.library) is None:
            continue
        if isinstance(own, type(library)):
            library, own = own, None
        yield library
    if own is not None:
        yield own


def _of_layers(layers: list[Any] | tuple[Any, ...]) -> FrontEnd:
    """Return the front end of all layers of a list."""
    found = {front_end_of(layer) for layer in layers}
    if len(found) != 1 or not (one := found.pop()).takes_layers:
        raise unknown(layers)
    return one


@cache
def _loaded(point: EntryPoint) -> FrontEnd:
    made = load(point, FrontEnd)
    return made() if isinstance(made, type) else made
