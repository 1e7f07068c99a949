"""Augmentation: the user's JAX function that a training step first applies to its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from converter.ir import Builder, Graph, Origin, Parameter, Value, ops
from converter.ir.random_numbers import call_key
from converter.passes.idioms import with_idioms
from converter.support.notes import Note

#: Who draws: dropouts count from 0.
_SITE = -1
_LAYER = "augment"


def augmentation(function: Callable[..., Any], inputs: Sequence[Value], counter: Value, parameter: Parameter) -> Graph:
    """Return the graph from the inputs of a model to what a step makes of them, under the same names.

    It counts the calls.

    Args:
        function: `(x, key) -> x`, in JAX.
        inputs: those of the model.
        counter: the number of the call.
        parameter: keeps it.

    Raises:
        UsageError: the function gives something else than it is given.
        UnsupportedError: it uses what cannot be compiled.
    """
    import jax_frontend

    traced, names = jax_frontend.trace_augmentation(function, {v.name: v.type for v in inputs})
    b = Builder(Graph(parameters={counter: parameter}))
    given = {v.name: b.input(v.name, v.type) for v in inputs}
    with b.at(Origin(_LAYER)):
        key = b.reshape(call_key(b, counter, _SITE), ())
        made = b.inline(with_idioms(traced), [*(given[name] for name in names), key])
        b.graph.updates[counter] = b(ops.Add(), counter, 1.0)
    made_of = dict(zip(names, made.values(), strict=True))
    b.graph.outputs = {v.name: made_of[v.name] for v in inputs}
    return b.graph


def augmentation_note(function: Callable[..., Any]) -> Note:
    """Return what to say of it."""
    name = getattr(function, "__name__", type(function).__name__)
    return Note(_LAYER, "trains", f"{name}: applied to the inputs of each step, with random numbers of its own")
