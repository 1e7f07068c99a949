"""Model import: what the person may pass, and the graph it becomes. The frontends load on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from converter.driver.heads import with_names_of_head
from converter.driver.language import RATES, is_language_model, language_model, reading_on, with_length
from converter.driver.options import Options
from converter.driver.other_files import check_file
from converter.driver.pytorch import check_object, is_torch_model, is_torch_optimizer, torch_model
from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite import is_tflite
from converter.frontends.tflite.carry import Carrier
from converter.ir import Graph, TensorType, Value, ops, reachable
from converter.ir.batch_norm import BatchNorm
from converter.passes.idioms import with_idioms
from converter.program.gguf_names import Names
from converter.support.errors import UsageError
from converter.support.libraries import is_instance
from converter.support.notes import Note, half_notes
from converter.training.constraints import Constraint
from converter.training.losses import Penalty

if TYPE_CHECKING:
    from converter.frontends.keras.compiled import Compiled


@dataclass(frozen=True)
class Source:
    """An imported model.

    Attributes:
        graph: its forward graph.
        name: what it is called.
        blocks: the blocks it names itself; None: read from the names.
        notes: what it does in training alone, and what becomes of that.
        penalties: its regularizers by the name of the parameter.
        compiled: what it was compiled with; None for nothing.
        batch_norms: its batch normalization layers, where the importer knows them.
        constraints: by the name of the parameter.
        carrier: what carries the operators of a file over that the model was read from.
        names: of its parameters by the `id` of what a PyTorch optimizer has of them.
        tflite: that file, and which part of it is meant.
        loss: the name of the loss that such models are trained with; None: it says nothing.
        optimizer: that of the optimizer.
        rates: learning rates that fit such models, by the name of the optimizer, where they are others than usual.
        generates: what makes the graphs of further signatures, by which it writes a text on.
        shorter: what imports it for rows of fewer tokens, by how many, where it is built for several lengths.
        labels: names of its classes, where it says them.
        preprocessing: how an input is made, where it says it.
        gguf: what llama.cpp calls its weights, where it has such models.
    """

    graph: Graph
    name: str
    blocks: Sequence[str] | None = None
    notes: Sequence[Note] = ()
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    compiled: Compiled | None = None
    batch_norms: Sequence[BatchNorm] = ()
    constraints: Mapping[str, Constraint] = field(default_factory=dict)
    carrier: Carrier | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    tflite: tflite_frontend.Model | None = None
    loss: str | None = None
    optimizer: str | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    generates: Mapping[str, Callable[[], Graph]] = field(default_factory=dict)
    shorter: Mapping[int, Callable[[int], Source]] = field(default_factory=dict)
    labels: Sequence[str] | None = None
    preprocessing: Mapping[str, Any] | None = None
    gguf: Names | None = None

    @property
    def is_torch(self) -> bool:
        """Whether it is a PyTorch module, whose parameters its optimizers know."""
        return bool(self.names)


class Shaped(NamedTuple):
    """A Keras model, live or its path, and what it takes.

    Attributes:
        model: the model.
        inputs: shape and dtype of each input, the first axis the batch.
    """

    model: Any
    inputs: Sequence[Any]


def with_inputs(model: Any, inputs: Sequence[Any] | None) -> Any:
    """Return a model that knows what it takes, as `import_model` reads it.

    Args:
        model: as for `build`.
        inputs: shape and dtype of each input, as jax.ShapeDtypeStruct or arrays; None where the model says it.

    Raises:
        UsageError: the model says it itself, `inputs` are no shapes, or it is a file of another tool.
    """
    check_file(model)
    check_object(model)
    if inputs is None:
        return model
    if is_torch_model(model):
        return _torch_with_inputs(model, inputs)
    if not isinstance(inputs, list | tuple) or not all(hasattr(i, "shape") and hasattr(i, "dtype") for i in inputs):
        raise UsageError(
            "inputs is a list with an entry for each input, jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32') or an "
            f"array, not {inputs!r}",
            page="models",
        )
    if isinstance(model, str | Path) or _is_keras(model):
        return Shaped(model, inputs)
    if _is_jax_model(model):
        raise UsageError("inputs: the Model says what it takes; leave it out, or pass the module itself", page="models")
    import jax_frontend

    return jax_frontend.Model(model, inputs=inputs) if jax_frontend.is_module(model) else model


def with_own_augmentation(model: Any, options: Options) -> Options:
    """Options of a build in which the word `keras` for `augment` is the model's own layers, as a function.

    Raises:
        UsageError: the model does not begin with random layers, or is none of Keras.
    """
    if options.augment != "keras":
        return options
    from converter.frontends.keras.augmentation import own_augmentation

    return replace(options, augment=own_augmentation(model.model if isinstance(model, Shaped) else model))


def import_model(model: Any, batch: int) -> Source:
    """Return the forward graph of a `keras.Model`, a path or a `jax_frontend.Model` for one batch size.

    What was imported already is returned as it is.

    Raises:
        UsageError: it is none of these, or the file is not usable.
        UnsupportedError: the model holds what cannot be compiled.
    """
    if isinstance(model, Source):
        return model
    if is_torch_model(model):
        return _torch_source(torch_model(model), batch)
    if is_language_model(model):
        model = language_model(model)
        made = _jax_source(model.jax_model(), batch)
        return replace(
            made,
            notes=[*made.notes, *model.opened.notes],
            loss="next_token",
            optimizer="adam",
            rates=RATES,
            generates=reading_on(model),
            shorter={length: partial(import_model, other) for length, other in model.shorter().items()},
            gguf=model.names_in_gguf(),
        )
    if is_tflite(model):
        model = tflite_frontend.Model(model)
    if isinstance(model, tflite_frontend.Model):
        return _tflite_source(model, batch)
    model, inputs = model if isinstance(model, Shaped) else (model, None)
    if isinstance(model, str | Path):
        return _keras_source(model, batch, Path(model).stem, inputs)
    if _is_keras(model):
        return _keras_source(model, batch, str(model.name), inputs)
    if _is_jax_model(model):
        return _jax_source(model, batch)
    import jax_frontend

    if jax_frontend.is_module(model):
        raise UsageError(
            f"a module of Flax or Equinox does not say what it takes: build({type(model).__name__}, inputs=["
            "jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32')]), one entry an input, the first axis the batch; "
            "elsewhere pocketune.Model(module, inputs=[...])",
            page="models",
        )
    raise UsageError(
        f"cannot build a {type(model).__module__}.{type(model).__qualname__}: "
        "pass a keras.Model, a torch.nn.Module, a module of Flax or Equinox, the path of a .keras, .pt2, .tflite or "
        ".gguf file, or a pocketune.Model(apply, params, inputs=[...]) of a JAX function",
        page="models",
    )


def _torch_with_inputs(model: Any, inputs: Any) -> Any:
    """Return a PyTorch model that knows what it takes.

    Raises:
        UsageError: it says it itself.
    """
    made = torch_model(model, inputs)
    if made is model:
        raise UsageError("inputs: the Model says what it takes; leave it out, or pass the module itself", page="models")
    return made


def _torch_source(model: Any, batch: int) -> Source:
    from converter.frontends import torch as torch_frontend

    made = torch_frontend.import_torch(model, batch)
    return Source(made.graph, model.name, notes=made.notes, batch_norms=made.batch_norms, names=model.parameter_names())


def _is_keras(model: Any) -> bool:
    """Return whether something is a Keras model or a layer of one."""
    return is_instance(model, "keras", "Layer")


def _is_jax_model(model: Any) -> bool:
    return is_instance(model, "jax_frontend", "Model")


def _jax_source(model: Any, batch: int) -> Source:
    import jax_frontend

    found = jax_frontend.Findings()
    graph = with_idioms(jax_frontend.trace(model, batch, found))
    names = graph.parameter_names()
    norms = [layer for layer in found.batch_norms.values() if {layer.mean, layer.variance} <= names.keys()]
    return Source(graph, model.name, model.layers, notes=[*found.notes, *half_notes(found.halves)], batch_norms=norms)


def _tflite_source(model: tflite_frontend.Model, batch: int) -> Source:
    if model.head is not None:
        return _with_head(model, batch)
    made = model.imported(batch)
    return Source(
        made.graph,
        model.name,
        notes=made.notes,
        carrier=made.carrier,
        tflite=model,
        optimizer="adam",
        labels=made.labels,
        preprocessing=made.preprocessing,
    )


@dataclass(frozen=True, eq=False)
class _Head:
    """A head of one's own behind a tensor of a file.

    Attributes:
        model: what the person passed.
        known: what was imported of it, by the shape of what it reads.
    """

    model: Any
    known: dict[tuple[int, ...], Source] = field(default_factory=dict)

    def graph(self, features: TensorType) -> Graph:
        """Return its forward graph."""
        return self.source(features).graph

    def source(self, features: TensorType) -> Source:
        """Return it imported for such features, its parameters called `head/...`."""
        if features.shape not in self.known:
            self.known[features.shape] = self._imported(features)
        return self.known[features.shape]

    def _imported(self, features: TensorType) -> Source:
        model, spec = self.model, TensorType((1, *features.shape[1:]), features.dtype)
        if all(_is_keras(layer) for layer in (model if isinstance(model, list | tuple) else [model])):
            from converter.frontends.keras.stack import as_model

            model = as_model(model, features.shape[1:])
        elif not _is_jax_model(model):
            model = with_inputs(model, [spec])
        elif not model.inputs:
            model = replace(model, inputs=[spec])
        return with_names_of_head(import_model(model, features.shape[0]))


def _with_head(model: tflite_frontend.Model, batch: int) -> Source:
    """Return a file behind which a head of one's own stands, with all that the head says of itself."""
    head = model.head if isinstance(model.head, _Head) else _Head(model.head)
    model = replace(model, head=head)
    made = model.imported(batch)
    assert made.features is not None
    own = head.source(made.features)
    return replace(
        own,
        graph=made.graph,
        name=model.name,
        notes=[*made.notes, *own.notes],
        carrier=made.carrier,
        tflite=model,
        optimizer="adam",
        preprocessing=made.preprocessing,
    )


def as_asked(model: Any, options: Options) -> Any:
    """Return a model in the form that the options ask of it: a length of rows, a part of it, a fresh last layer.

    Raises:
        UsageError: the model has no such form, or says it itself.
    """
    if isinstance(model, Source):
        return model
    model = with_length(model, options.length)
    asked = {name: value for name in _PARTS if (value := getattr(options, name)) is not None}
    return _part(model, asked) if asked else model


#: Options that say which part of a model is meant, and why other models than files have none such.
_PARTS = {
    "classes": "classes puts a fresh last layer on a .tflite file{which}. Of a Keras, JAX or PyTorch model build it "
    "with so many classes",
    "cut": "cut leaves out what stands behind a tensor of a .tflite file{which}. Of a Keras, JAX or PyTorch model "
    "build one that ends there",
    "outputs": "outputs keeps some outputs of a .tflite file or a PyTorch model{which}. Of a Keras or JAX model "
    "build one with these",
}


def _part(model: Any, asked: Mapping[str, Any]) -> Any:
    """Return the part of a model that options ask for, by name."""
    if is_tflite(model):
        model = tflite_frontend.Model(model)
    is_file, is_torch = isinstance(model, tflite_frontend.Model), is_torch_model(model)
    for name in asked:
        if not (is_file or (is_torch and name == "outputs")):
            which = f", and {model} is none" if isinstance(model, str | Path) else ""
            raise UsageError(_PARTS[name].format(which=which), page="models")
    model = torch_model(model) if is_torch else model
    for name in asked:
        if (own := getattr(model, name)) is not None and own != asked[name]:
            raise UsageError(
                f"{name}={asked[name]!r}: the Model says {name}={own!r} itself; leave one of the two out", page="models"
            )
    return replace(model, **asked)


def _keras_source(model: Any, batch: int, name: str, inputs: Sequence[Any] | None) -> Source:
    from converter.frontends import keras as keras_frontend
    from converter.frontends.keras.compiled import read_compiled

    made = keras_frontend.import_keras(model, batch, inputs)
    return Source(
        made.graph,
        name,
        notes=made.notes,
        penalties=made.penalties,
        compiled=read_compiled(made.compiled, list(made.graph.outputs)),
        batch_norms=made.batch_norms,
        constraints=made.constraints,
    )


def as_pytorch_trains(source: Source, optimizer: Any) -> Source:
    """Return a PyTorch model with all fixed that PyTorch leaves as it is, and notes that say so.

    That is what no output depends on, what gets no gradient as it stands under `torch.no_grad` or `detach()`, and what
    a PyTorch optimizer does not have. Other models as they are.
    """
    if not source.is_torch and not is_torch_optimizer(optimizer):
        return source
    graph = source.graph.copy()
    needed = reachable(graph, graph.outputs.values())
    unused = {p.name for v, p in graph.parameters.items() if p.trainable and v not in needed}
    moved_to = _with_cotangents(graph)
    stopped = {p.name for v, p in graph.parameters.items() if p.trainable and v not in moved_to} - unused
    left: set[str] = set()
    if is_torch_optimizer(optimizer):
        from converter.frontends import torch as torch_frontend

        moved = torch_frontend.optimized(optimizer, source.names)
        left = {p.name for p in graph.parameters.values() if p.trainable and p.name not in moved}
    graph.parameters = {
        v: replace(p, trainable=p.trainable and p.name not in left | stopped, idle=p.idle or p.name in unused)
        for v, p in graph.parameters.items()
    }
    notes = [Note(name, "fixed", "the optimizer does not have it") for name in sorted(left)]
    notes += [Note(name, "fixed", "no output depends on it") for name in sorted(unused - left)]
    notes += [
        Note(name, "fixed", "no gradient reaches it (torch.no_grad, detach())") for name in sorted(stopped - left)
    ]
    return replace(source, graph=graph, notes=[*source.notes, *notes])


def _with_cotangents(graph: Graph) -> set[Value]:
    """Return the values that cotangents of the outputs reach, integers and what has a gradient of 0 included."""
    reached = set(graph.outputs.values())
    for node in reversed(graph.nodes):
        stops = isinstance(node.op, ops.CustomGradient) and not node.op.backward.outputs
        if not stops and not reached.isdisjoint(node.outputs):
            reached.update(node.inputs)
    return reached
