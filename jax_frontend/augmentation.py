"""Augmentation: a JAX function of inputs and a key, traced with keys of the compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from converter.ir import Graph, TensorType
from converter.support.errors import UsageError
from jax_frontend.rules.random import key_type
from jax_frontend.tracing import trace_function

#: The scope of what it does.
SCOPE = "augment"


def trace_augmentation(function: Callable[..., Any], inputs: Mapping[str, TensorType]) -> tuple[Graph, list[str]]:
    """Return the graph of `function(x, key) -> x`.

    Args:
        function: gets one input as it is, several as a tuple where they have no names of their own, else as a dict.
        inputs: types of the inputs of the model.

    Returns:
        The graph, and the names of its inputs and outputs in order; one more input, the last, is the key [].

    Raises:
        UsageError: it gives something else than it is given, or takes other arguments.
        UnsupportedError: it uses what cannot be compiled.
    """
    numbered = list(inputs) == [f"x_{i}" for i in range(len(inputs))]
    types = {name: jax.ShapeDtypeStruct(type.shape, type.dtype) for name, type in inputs.items()}
    given: Any = types
    if len(inputs) == 1 or numbered:
        given = tuple(types.values()) if len(inputs) > 1 else next(iter(types.values()))

    def checked(x: Any, key: Any) -> Any:
        with jax.named_scope(SCOPE):
            made = function(x, key)
        found, wanted = _described(made), _described(given)
        if found != wanted:
            raise UsageError(
                f"augment: {_name(function)} must give what it is given, {wanted}, and gives {found}",
                page="augmentation",
            )
        return made

    try:
        graph = trace_function(checked, [given, key_type()], ["x", "key"])
    except Exception as error:
        error.add_note(f"Raised when Pocketune traced augment as {_name(function)}({_described(given)}, key).")
        raise
    return graph, sorted(inputs) if isinstance(given, dict) else list(inputs)


def _described(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)).replace("'", "")


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
