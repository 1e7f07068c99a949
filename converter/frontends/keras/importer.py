"""Import of Keras models on JAX, as `jax_frontend.Model` and as graphs; Keras masks become loss masks."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_frontend
from converter.frontends.imported import Imported
from converter.frontends.keras.activity import Activities
from converter.frontends.keras.archive import COMPILED, check_archive
from converter.frontends.keras.compile_config import archived_config, compile_config
from converter.frontends.keras.constraints import constraints_of
from converter.frontends.keras.dropout import marked
from converter.frontends.keras.interface import (
    calling,
    input_names,
    input_spec,
    is_functional,
    output_names,
    own_interface,
)
from converter.frontends.keras.preprocessing import check_preprocessing, looked_up, within_jax
from converter.frontends.keras.sizes import check_sizes, check_weights
from converter.frontends.keras.statistics import marked_statistics
from converter.frontends.keras.training_only import batch_norms, held, notes_on, penalties
from converter.ir import Graph, ops
from converter.passes.idioms import with_idioms
from converter.support.errors import NumericError, PocketuneError, UsageError, is_ours
from converter.support.notes import Note, half_notes
from converter.training.constraints import Constraint
from converter.training.losses import Penalty
from jax_frontend.mask import masked

#: Where Keras lists the variables of a thread that it has yet to initialize.
_PENDING = "uninitialized_variables"


@dataclass(frozen=True)
class ImportedKeras(Imported):
    """A Keras model.

    Attributes:
        penalties: its regularizers by the name of the parameter.
        compiled: what `compile` was given, as Keras writes it down; None for nothing.
        constraints: by the name of the parameter.
    """

    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    compiled: Mapping[str, Any] | None = None
    constraints: Mapping[str, Constraint] = field(default_factory=dict)


def load(path: Path) -> Any:
    """Return the model of a `.keras` archive, checked before it is loaded.

    Its optimizer, loss and metrics are left out.

    Raises:
        UsageError: missing, corrupt, or not loadable by this version of Keras.
        UnsupportedError: it holds code.
    """
    return _loaded(path, check_archive(path))


def _loaded(path: Path, config: dict[str, Any]) -> Any:
    """Return the model of a checked archive, made only if the archive holds the weights that its config describes."""
    import keras

    stored = check_weights(path)
    body = {key: value for key, value in config.items() if key != COMPILED}
    try:
        # In this scope Keras draws no first weights, which the archive's would replace: JAX compiles a function for
        # each shape of them, which took most of the time of a build.
        with _without_traces(), keras.StatelessScope(initialize_variables=False) as scope:
            check_sizes(keras.saving.deserialize_keras_object(body, safe_mode=True), stored, path)
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
        for variable in model.variables:
            value = scope.get_current_value(variable)
            variable.assign(variable.value if value is None else value)
        return model
    except UsageError:
        raise
    except Exception as error:  # whatever a foreign file makes Keras raise: the user's file is the cause
        raise UsageError(f"Keras {keras.__version__} cannot load {path}: {_reason(error)}", page="models") from error


@contextmanager
def _without_traces() -> Iterator[None]:
    """Forgets the variables that are made and not initialized within.

    Keras lists them, and would make the weights of them all, however large, at the end of the next scope that it
    leaves. Nothing public takes them off that list.
    """
    from keras.src.backend.common import global_state

    before = list(global_state.get_global_attribute(_PENDING) or ())
    try:
        yield
    finally:
        global_state.set_global_attribute(_PENDING, before)


def _raised_by_keras(error: Exception) -> bool:
    """Return whether it comes out of a layer of Keras, not out of what is made of it here."""
    modules = [str(f.f_globals.get("__name__")) for f, _ in traceback.walk_tb(error.__traceback__)]
    ours = max(i for i, module in enumerate(modules) if is_ours(module))
    return any(module.partition(".")[0] == "keras" for module in modules[ours:])


def _reason(error: Exception) -> str:
    """Return the lines of an error of Keras that say something: it puts headings and whole configs before them."""
    lines = [line.strip() for line in str(error).rpartition("Exception encountered: ")[2].splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def import_archive(
    path: str, batch: int, inputs: list[tuple[tuple[int, ...], str]] | None, names: list[str] | None
) -> ImportedKeras:
    """Imports an archive on the JAX backend; `names` are the variable paths of the model that was saved to it."""
    specs = None if inputs is None else [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in inputs]
    config = check_archive(Path(path))
    model = _loaded(Path(path), config)
    try:
        imported = import_live(model, batch, specs, names)
    except Exception as error:
        if isinstance(error, PocketuneError) or not _raised_by_keras(error):
            raise
        raise UsageError(f"{path}: Keras cannot run the model: {_reason(error)}", page="models") from error
    return replace(imported, compiled=archived_config(Path(path), config))


def import_live(
    model: Any, batch: int, inputs: Sequence[jax.ShapeDtypeStruct] | None = None, names: list[str] | None = None
) -> ImportedKeras:
    """Return a live model of the JAX backend."""
    own_losses: list[Any] = []
    assigned: set[str] = set()
    found = jax_frontend.Findings()
    with within_jax(model):
        graph = with_idioms(jax_frontend.trace(jax_model(model, inputs, names, own_losses, assigned), batch, found))
    variables = named_variables(model, names)
    trainable = {id(v) for v in model.trainable_variables} - held(model)
    frozen = {name for name, v in variables.items() if id(v) not in trainable}
    trained = {name: v for name, v in variables.items() if name not in frozen}
    graph.parameters = {
        value: replace(p, trainable=False) if p.name in frozen else p for value, p in graph.parameters.items()
    }
    if len(graph.inputs) > 1:
        for value, name in zip(graph.inputs, input_names(model), strict=True):
            value.name = name
    if is_functional(model) and all(name == f"output_{i}" for i, name in enumerate(graph.outputs)):
        graph.outputs = dict(zip(output_names(model), graph.outputs.values(), strict=True))
    activities = [node.op.layer for node in graph.nodes if isinstance(node.op, ops.Activity)]
    notes = [
        *_mask_notes(graph),
        *notes_on(model, trained, len(own_losses), activities),
        *_assigned_notes(assigned),
    ]
    if not any(note.status == "in float32" for note in notes):  # by no policy, which says it of its layers
        notes += half_notes(found.halves)
    return ImportedKeras(
        graph,
        notes,
        batch_norms(model, variables),
        own_interface(model, [value.name for value in graph.inputs], found.outputs),
        penalties=penalties(trained),
        compiled=compile_config(model),
        constraints=constraints_of(trained),
    )


def _mask_notes(graph: Graph) -> list[Note]:
    masked = {node.output for node in graph.nodes if isinstance(node.op, ops.Masked)}
    why = "its mask: a loss with a name counts the places that it leaves, as in Keras; a function of your own sees all"
    return [Note(name, "in the loss", why) for name, value in graph.outputs.items() if value in masked]


def _assigned_notes(assigned: Collection[str]) -> list[Note]:
    why = "the model assigns to it as it is called: every call of the program begins with the value that it has now"
    return [Note(name, "left out", why) for name in sorted(assigned)]


def jax_model(
    model: Any,
    inputs: Sequence[jax.ShapeDtypeStruct] | None = None,
    names: list[str] | None = None,
    own_losses: list[Any] | None = None,
    assigned: set[str] | None = None,
) -> jax_frontend.Model:
    """Return a live model as a function of its variables: normalization by the moving statistics, dropout only marked.

    `own_losses` takes what its layers add to the loss as they are called, `assigned` the names of the variables to
    which they assign then.

    Raises:
        UsageError: the model has no weights yet, or an axis of an input has no fixed size.
        NumericError: a weight is not finite.
    """
    import keras

    if not model.built:
        raise UsageError(
            f"the model {model.name!r} has no weights yet: start it with keras.Input(shape), or call it "
            "once on a batch",
            page="models",
        )
    check_preprocessing(model)
    call, specs = calling(model)
    variables = named_variables(model, names)
    _check_finite(variables)
    if inputs is None:
        inputs = [input_spec(model, index, spec) for index, spec in enumerate(specs)]
    elif len(inputs) != len(specs):
        raise UsageError(
            f"the model {model.name!r} has {len(specs)} inputs, {len(inputs)} are described", page="models"
        )

    def apply(params: dict[str, Any], *arrays: Any) -> Any:
        mapping = [(v, params[name]) for name, v in variables.items()]

        def called(activities: Activities) -> Any:
            scope = keras.StatelessScope(state_mapping=mapping, collect_losses=own_losses is not None)
            before = dict(scope.state_mapping)
            with marked(), marked_statistics(), looked_up(), activities.marked(), scope:
                outputs = jax.tree.map(_masked, call(arrays))
            if own_losses is not None:
                own_losses[:] = scope.losses
            if assigned is not None:
                changed = {i for i, value in scope.state_mapping.items() if before.get(i) is not value}
                assigned.update(v.path for v in _everything(model) if id(v) in changed - _seeds(model))
            return outputs

        every = Activities(model)
        if Activities.exist(model):  # which of them count is known behind the last
            jax.eval_shape(lambda: called(every))
        return called(Activities(model, every.kept))

    return jax_frontend.Model(apply, {n: v.value for n, v in variables.items()}, inputs, name=str(model.name))


def _everything(model: Any) -> list[Any]:
    """Return all variables of a model, and the states that recurrent layers keep from call to call."""
    states = [getattr(layer, "states", None) for layer in model._flatten_layers()]
    return [*model.variables, *(v for v in jax.tree.leaves(states) if hasattr(v, "path"))]


def _seeds(model: Any) -> set[int]:
    """Return ids of the variables that random numbers are drawn with: some layers draw where they need none."""
    return {id(g.state) for layer in model._flatten_layers() for g in getattr(layer, "_seed_generators", ())}


def _masked(output: Any) -> Any:
    """Return an output, marked with the mask that Keras' losses read from it by the same function."""
    from keras.src.backend import get_keras_mask

    mask = get_keras_mask(output)
    if mask is None:
        return output
    if mask.shape != output.shape[: mask.ndim]:
        raise UsageError(
            f"an output of the model has the shape {list(output.shape)} and a Keras mask of the shape "
            f"{list(mask.shape)}, which is not one number for each of its places",
            page="models",
        )
    return masked(output, mask)


def named_variables(model: Any, names: list[str] | None = None) -> dict[str, Any]:
    """Return the variables of a model by path; the layer of a path that occurs again gets `_1`, `_2`, ...

    As Keras counts.
    """
    variables = list(model.variables)
    named: dict[str, Any] = {}
    for path, variable in zip(names or [v.path for v in variables], variables, strict=True):
        name, count = path, 0
        while name in named:
            count += 1
            layer, slash, weight = path.rpartition("/")
            name = f"{layer}_{count}/{weight}" if slash else f"{path}_{count}"
        named[name] = variable
    return named


def _check_finite(variables: dict[str, Any]) -> None:
    broken = {}
    for name, variable in variables.items():
        array = np.asarray(variable.value)
        if array.dtype.kind not in "iub" and not np.isfinite(array.astype(np.float32)).all():
            broken[name] = int((~np.isfinite(array.astype(np.float32))).sum())
    if broken:
        listed = "\n".join(f"  {name}: {count} elements" for name, count in broken.items())
        raise NumericError(f"the model's weights hold NaN or infinity:\n{listed}")
