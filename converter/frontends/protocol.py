"""Front end protocol: the interface between a build and the importer of one library's models."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from converter.frontends.source import Library, Source
from converter.ir import TensorType
from converter.support.errors import UsageError

#: What imports a model of any front end behind a tensor [rows, ...] of another one's.
Others = Callable[[Any, TensorType], Source]


#: Options of a build that some front ends know alone, and what is said of a model of the others; `{which}` is it, where
#: it is a file.
OWN_OPTIONS = {
    "length": "length is the number of tokens in a row of a .gguf file; another model says by its inputs what it takes",
    "classes": "classes puts a fresh last layer on a .tflite file{which}. Of a Keras, JAX or PyTorch model build it "
    "with so many classes",
    "cut": "cut leaves out what stands behind a tensor of a .tflite file{which}. Of a Keras, JAX or PyTorch model "
    "build one that ends there",
    "outputs": "outputs keeps some outputs of a .tflite file or a PyTorch model{which}. Of a Keras or JAX model "
    "build one with these",
}


class FrontEnd(ABC):
    """What imports the models of one world.

    One of ours is a row of `converter.frontends.table`; one from elsewhere is an entry point of the group
    `pocketune.frontends`.

    Attributes:
        options: names of `OWN_OPTIONS` that it knows.
        takes_layers: whether a list of layers may stand after a tensor.
        library: what its models are trained with elsewhere; None: JAX.
    """

    options: ClassVar[Collection[str]] = ()
    takes_layers: ClassVar[bool] = False
    library: Library | None = None

    @abstractmethod
    def takes(self, model: Any) -> bool:
        """Return whether it imports a model: an object, or the path of a file or folder."""

    @abstractmethod
    def source(self, model: Any, rows: int, others: Others) -> Source:
        """Return a model for a number of rows.

        Args:
            model: one that it takes, with inputs and options.
            rows: the first axis of each input.
            others: imports what stands after a tensor of the model, of whatever front end that is.

        Raises:
            UsageError: it is not usable, or does not say what it takes.
            UnsupportedError: it holds what cannot be compiled; all places are listed.
        """

    def prepared(self, model: Any, inputs: Any, asked: Mapping[str, Any]) -> Any:
        """Return a model in the form in which it is imported, with the inputs and options that a build asks of it.

        Args:
            model: one that it takes.
            inputs: shape and dtype of each; None: it says them itself.
            asked: options of `OWN_OPTIONS` by name.

        Raises:
            UsageError: it does not know an option, has no such form, or says it itself.
        """
        for name in asked:
            if name not in self.options:
                which = f", and {model} is none" if isinstance(model, str | os.PathLike) else ""
                raise UsageError(OWN_OPTIONS[name].format(which=which), page="models")
        if inputs is not None:
            model = self.with_inputs(model, inputs)
        return self.opened(self.with_options(model, asked) if asked else model)

    def opened(self, model: Any) -> Any:
        """Return a model in the form in which it is imported several times, for one number of rows after the other."""
        return model

    def with_inputs(self, model: Any, inputs: Any) -> Any:
        """Return a model that takes such inputs.

        Raises:
            UsageError: it says itself what it takes, or these are no shapes.
        """
        check_inputs(inputs)
        raise UsageError(f"inputs: {model} says what it takes; leave it out", page="models")

    def with_options(self, model: Any, asked: Mapping[str, Any]) -> Any:
        """Return a model in the form that some of its `options` ask for, by name.

        Raises:
            UsageError: it has no such form, or says it itself.
        """
        raise NotImplementedError

    def suffix(self, model: Any, features: TensorType) -> Any:
        """Return a model that stands after a tensor of such rows, [1, ...]."""
        return self.with_inputs(model, [features])

    def augmentation(self, model: Any) -> Callable[[Any, Any], Any] | None:
        """Return what the name of the front end means as `augment`, `(x, key) -> x`; None: it means nothing.

        Args:
            model: what is built, of this front end or another.

        Raises:
            UsageError: the model has no such thing.
        """
        return None


def check_inputs(inputs: Any) -> Sequence[Any]:
    """Return shape and dtype of each input. Raise UsageError where they are none."""
    if not isinstance(inputs, list | tuple) or not all(hasattr(i, "shape") and hasattr(i, "dtype") for i in inputs):
        raise UsageError(
            "inputs is a list with an entry for each input, jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32') or an "
            f"array, not {inputs!r}",
            page="models",
        )
    return inputs


def says_inputs() -> UsageError:
    """Return what is raised where inputs are given of a model that says them."""
    return UsageError("inputs: the Model says what it takes; leave it out, or pass the module itself", page="models")


def check_said_once(model: Any, asked: Mapping[str, Any]) -> None:
    """Raise UsageError where a model says itself what an option asks otherwise."""
    for name, value in asked.items():
        if (own := getattr(model, name)) is not None and own != value:
            raise UsageError(
                f"{name}={value!r}: the Model says {name}={own!r} itself; leave one of the two out", page="models"
            )
