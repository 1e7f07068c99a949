"""What the person may pass as a model or a loss, and the forward graph it becomes. The frontends load on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.errors import UsageError
from converter.ir import Graph, TensorType
from converter.losses import Loss, Penalty, named_loss, traced_loss
from converter.notes import Note

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
    """

    graph: Graph
    name: str
    blocks: Sequence[str] | None = None
    notes: Sequence[Note] = ()
    penalties: Mapping[str, Penalty] = field(default_factory=dict)
    compiled: Compiled | None = None


def import_model(model: Any, batch: int) -> Source:
    """The forward graph of a `keras.Model`, a `.keras` path or a `jax_frontend.Model` for one batch size.

    What was imported already is returned as it is.

    Raises:
        UsageError: it is none of these, or the file is not usable.
        UnsupportedError: the model holds what cannot be compiled.
    """
    if isinstance(model, Source):
        return model
    if isinstance(model, str | Path):
        return _keras_source(model, batch, Path(model).stem)
    module = type(model).__module__.partition(".")[0]
    if any(base.__module__.partition(".")[0] == "keras" for base in type(model).__mro__):
        return _keras_source(model, batch, str(model.name))
    if module == "jax_frontend":
        import jax_frontend

        return Source(jax_frontend.trace(model, batch), model.name, model.layers)
    raise UsageError(
        f"cannot build a {type(model).__module__}.{type(model).__qualname__}: "
        "pass a keras.Model, the path of a .keras file, or a jax_frontend.Model"
    )


def _keras_source(model: Any, batch: int, name: str) -> Source:
    import keras_frontend
    from keras_frontend.compiled import read_compiled

    made = keras_frontend.import_keras(model, batch)
    return Source(made.graph, name, notes=made.notes, penalties=made.penalties, compiled=read_compiled(made.compiled))


def import_loss(loss: Any, forward: Graph, targets: Any = None) -> Loss:
    """A loss by name, or the person's JAX function traced on the model's outputs.

    Raises:
        UsageError: unknown name, or a function that does not return one number per example.
    """
    if isinstance(loss, str):
        return named_loss(loss)
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise UsageError(f"loss must be a name or a function (outputs, targets) -> per-example loss, not {loss!r}")
    import jax_frontend

    if targets is not None and not (hasattr(targets, "shape") and hasattr(targets, "dtype")):
        raise UsageError(f"targets describes y, for example jax.ShapeDtypeStruct((1,), 'int32'); it is {targets!r}")
    outputs = tuple(v.type for v in forward.outputs.values())
    argument = outputs[0] if len(outputs) == 1 else outputs
    batch = outputs[0].shape[:1]
    y = outputs[0] if targets is None else TensorType((*batch, *targets.shape[1:]), targets.dtype)
    try:
        graph = jax_frontend.trace_function(loss, [argument, y], ["outputs", "y"])
    except Exception as error:
        if targets is None:
            error.add_note(
                f"Your loss was given y of the type of the model's output, {y}. If y is something else, say what one "
                "example's is: targets=jax.ShapeDtypeStruct((1,), 'int32') for labels (--y int32)."
            )
        raise
    return traced_loss(graph, getattr(loss, "__name__", "custom"))
