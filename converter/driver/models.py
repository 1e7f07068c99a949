"""Model and loss import: what the person may pass, and the graph it becomes. The frontends load on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tflite_frontend
from converter.driver.heads import with_names_of_head
from converter.driver.options import Options
from converter.driver.pytorch import is_torch_loss, is_torch_model, is_torch_optimizer, torch_model
from converter.ir import Graph, TensorType, Value, reachable
from converter.ir.batch_norm import BatchNorm
from converter.passes.idioms import with_idioms
from converter.program.manifest import TARGET
from converter.support.errors import UsageError, nearest
from converter.support.notes import Note, half_notes
from converter.training.constraints import Constraint
from converter.training.losses import JointLoss, Loss, Penalty, labels_of, named_loss
from converter.training.losses.own_loss import own_loss, target_types
from tflite_frontend import is_tflite
from tflite_frontend.carry import Carrier

if TYPE_CHECKING:
    from keras_frontend.compiled import Compiled


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
        labels: names of its classes, where it says them.
        preprocessing: how an input is made, where it says it.
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
    labels: Sequence[str] | None = None
    preprocessing: Mapping[str, Any] | None = None


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
        UsageError: the model says it itself, or `inputs` are no shapes.
    """
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
    if isinstance(model, str | Path) or _is_of("keras", model):
        return Shaped(model, inputs)
    if _is_of("jax_frontend", model):
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
    from keras_frontend.augmentation import own_augmentation

    return replace(options, augment=own_augmentation(model.model if isinstance(model, Shaped) else model))


def import_model(model: Any, batch: int) -> Source:
    """Return the forward graph of a `keras.Model`, a `.keras` path or a `jax_frontend.Model` for one batch size.

    What was imported already is returned as it is.

    Raises:
        UsageError: it is none of these, or the file is not usable.
        UnsupportedError: the model holds what cannot be compiled.
    """
    if isinstance(model, Source):
        return model
    if is_torch_model(model):
        return _torch_source(torch_model(model), batch)
    if is_tflite(model):
        model = tflite_frontend.Model(model)
    if isinstance(model, tflite_frontend.Model):
        return _tflite_source(model, batch)
    model, inputs = model if isinstance(model, Shaped) else (model, None)
    if isinstance(model, str | Path):
        return _keras_source(model, batch, Path(model).stem, inputs)
    if _is_of("keras", model):
        return _keras_source(model, batch, str(model.name), inputs)
    if _is_of("jax_frontend", model):
        return _jax_source(model, batch)
    if any(_is_of(library, model) for library in ("flax", "equinox")):
        raise UsageError(
            f"a module of Flax or Equinox does not say what it takes: build({type(model).__name__}, inputs=["
            "jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32')]), one entry an input, the first axis the batch; "
            "elsewhere pocketune.Model(module, inputs=[...])",
            page="models",
        )
    raise UsageError(
        f"cannot build a {type(model).__module__}.{type(model).__qualname__}: "
        "pass a keras.Model, the path of a .keras file, a module of Flax or Equinox, or a pocketune.Model(apply, "
        "params, inputs=[...]) of a JAX function",
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
    import torch_frontend

    made = torch_frontend.import_torch(model, batch)
    return Source(made.graph, model.name, notes=made.notes, batch_norms=made.batch_norms, names=model.parameter_names())


def _is_of(library: str, candidate: Any) -> bool:
    """Return whether an object is of a class of a library, or of one derived from it."""
    return any(f"{base.__module__}.".startswith(f"{library}.") for base in type(candidate).__mro__)


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
        if all(_is_of("keras", layer) for layer in (model if isinstance(model, list | tuple) else [model])):
            from keras_frontend.stack import as_model

            model = as_model(model, features.shape[1:])
        elif not _is_of("jax_frontend", model):
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
        preprocessing=made.preprocessing,
    )


def with_classes(model: Any, classes: int | None) -> Any:
    """Return a model with a fresh last layer of so many classes; None: as it is.

    Raises:
        UsageError: the model is no TFLite file.
    """
    if classes is None or isinstance(model, Source):
        return model
    if isinstance(model, tflite_frontend.Model):
        return replace(model, classes=classes)
    if not is_tflite(model):
        raise UsageError(
            "classes puts a fresh last layer on a .tflite file. Of a Keras or JAX model build it with so many classes",
            page="models",
        )
    return tflite_frontend.Model(model, classes=classes)


def _keras_source(model: Any, batch: int, name: str, inputs: Sequence[Any] | None) -> Source:
    import keras_frontend
    from keras_frontend.compiled import read_compiled

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


def import_loss(loss: Any, forward: Graph, targets: Any = None, weights: Any = None) -> Loss | JointLoss:
    """Return what training minimizes: a loss, or one for each output.

    Args:
        loss: a name, a Loss, or the person's JAX function of all outputs and the targets; or a dict of these by output,
            or a list of them in the order of the outputs, None for an output without one.
        forward: the forward graph.
        targets: what one row of the targets is, for functions, else as the first output that these read; a dict or
            tuple of several; for losses by output a dict by output.
        weights: what each of the losses by output is multiplied by, in the same form.

    Raises:
        UsageError: an unknown name or output, or a function that does not return one number per example.
    """
    if isinstance(loss, JointLoss):
        return loss if weights is None else loss.weighed(_factors(weights, forward))
    if not isinstance(loss, Mapping | list | tuple):
        if weights is not None:
            raise UsageError("loss_weights is for losses by output: pass loss={'<output>': ...} as well", page="models")
        return _one_loss(loss, dict(forward.outputs), targets)
    parts = {name: part for name, part in _by_output("loss", loss, forward).items() if part is not None}
    if not parts:
        raise UsageError("loss: every output has None, there is nothing to train for", page="models")
    kinds = {} if targets is None else _by_output("y", targets, forward)
    joint = {name: _one_loss(part, {name: forward.outputs[name]}, kinds.get(name)) for name, part in parts.items()}
    return JointLoss(joint) if weights is None else JointLoss(joint).weighed(_factors(weights, forward))


def without_idle_outputs(source: Source, loss: Any) -> Source:
    """Return the model with what only outputs without a loss depend on kept fixed, and a note that says so."""
    if isinstance(loss, JointLoss):
        losses: dict[str, Any] = dict(loss.parts)
    elif isinstance(loss, Mapping | list | tuple):
        losses = _by_output("loss", loss, source.graph)
    else:
        return source
    graph = source.graph.copy()
    trained = [v for name, v in graph.outputs.items() if losses.get(name) is not None]
    needed = reachable(graph, trained)
    idle = [p.name for v, p in graph.parameters.items() if p.trainable and v not in needed]
    if not idle or not trained:
        return source
    graph.parameters = {v: replace(p, idle=p.idle or v not in needed) for v, p in graph.parameters.items()}
    outputs = ", ".join(name for name in graph.outputs if losses.get(name) is None)
    note = Note(outputs, "fixed", f"without a loss nothing trains what it alone depends on: {', '.join(idle)}")
    return replace(source, graph=graph, notes=[*source.notes, note])


def as_pytorch_trains(source: Source, optimizer: Any) -> Source:
    """Return a PyTorch model with all fixed that PyTorch leaves as it is, and notes that say so.

    That is what no output depends on, and what a PyTorch optimizer does not have. Other models as they are.
    """
    if not source.names and not is_torch_optimizer(optimizer):
        return source
    graph = source.graph.copy()
    needed = reachable(graph, graph.outputs.values())
    unused = {p.name for v, p in graph.parameters.items() if p.trainable and v not in needed}
    left: set[str] = set()
    if is_torch_optimizer(optimizer):
        import torch_frontend

        moved = torch_frontend.read_optimizer(optimizer, source.names).parameters
        left = {p.name for p in graph.parameters.values() if p.trainable and p.name not in moved}
    graph.parameters = {
        v: replace(p, trainable=p.trainable and p.name not in left, idle=p.idle or p.name in unused)
        for v, p in graph.parameters.items()
    }
    notes = [Note(name, "fixed", "the optimizer does not have it") for name in sorted(left)]
    notes += [Note(name, "fixed", "no output depends on it") for name in sorted(unused - left)]
    return replace(source, graph=graph, notes=[*source.notes, *notes])


def _by_output(what: str, given: Any, forward: Graph) -> dict[str, Any]:
    """Return what was given for the outputs, by name, in their order."""
    names = list(forward.outputs)
    listed = ", ".join(names)
    if len(names) == 1:
        raise UsageError(
            f"{what}: the model has one output, pass what it is for that output alone, not {given!r}", page="models"
        )
    if isinstance(given, Mapping):
        if wrong := [name for name in given if name not in names]:
            raise UsageError(
                f"{what}: the model has no output {wrong[0]!r}.{nearest(str(wrong[0]), names)} It has {listed}.",
                page="models",
            )
        return {name: given[name] for name in names if name in given}
    if not isinstance(given, list | tuple) or len(given) != len(names):
        raise UsageError(
            f"{what}: the model has {len(names)} outputs, {listed}: pass a dict by these names", page="models"
        )
    return dict(zip(names, given, strict=True))


def _factors(weights: Any, forward: Graph) -> dict[str, float]:
    factors = _by_output("loss_weights", weights, forward)
    for name, factor in factors.items():
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not isfinite(factor):
            raise UsageError(f"loss_weights: that of {name} must be a number, got {factor!r}", page="models")
    return {name: float(factor) for name, factor in factors.items()}


def _one_loss(loss: Any, outputs: Mapping[str, Value], targets: Any) -> Loss:
    if loss == "ctc":
        return _ctc(outputs, targets)
    if isinstance(loss, str | Loss):
        known = named_loss(loss) if isinstance(loss, str) else loss
        if targets is not None:
            _check_targets(known, outputs, targets)
        return known
    if _is_of("keras", loss) or str(getattr(loss, "__module__", "")).startswith("keras."):
        from keras_frontend.compiled import loss_of

        return loss_of(loss)
    if is_torch_loss(loss):
        import torch_frontend

        return torch_frontend.loss_of(loss, outputs, targets)
    if not callable(loss):
        raise UsageError(
            f"loss must be a name or a function (outputs, targets) -> per-example loss, not {loss!r}", page="models"
        )
    return own_loss(loss, outputs, targets)


def _check_targets(loss: Loss, outputs: Mapping[str, Value], targets: Any) -> None:
    """Raises UsageError where a person says something else of y than what a named loss takes."""
    types = [v.type for v in outputs.values()]
    taken = loss.targets(types)
    said = target_types(targets, types[0].shape[:1])
    named = {f"{TARGET}/{name}": kind for name, kind in said.items()} if isinstance(said, dict) else {TARGET: said}
    if loss.outputs in (None, len(types)) and named != taken:
        wanted = ", ".join(f"{name} as {kind}" for name, kind in taken.items()) or "no y"
        raise UsageError(f"the loss {loss.name} takes {wanted}, which is not what y= says: leave y out", page="models")


def _ctc(outputs: Mapping[str, Value], targets: Any) -> Loss:
    from jax_frontend.losses import ctc

    if targets is None or len(getattr(targets, "shape", ())) != 2:
        raise UsageError(
            "the loss ctc needs to know how long the labels are: y=jax.ShapeDtypeStruct((1, 20), 'int32') "
            "(--y 'int32[20]'); shorter ones are filled with 0, which is the blank",
            page="models",
        )
    return replace(_one_loss(ctc, outputs, targets), link="softmax", outputs=1, counts=False, labels=labels_of(TARGET))
