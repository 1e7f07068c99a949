"""Weight constraints of a model's variables: Keras' own and those of its author, traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

import jax_frontend
from converter.passes.idioms import with_idioms
from converter.support.errors import UnsupportedError
from converter.training.constraints import Constraint


def constraints_of(variables: Mapping[str, Any]) -> dict[str, Constraint]:
    """Return those of the variables that train, by their names.

    Raises:
        UnsupportedError: one cannot be compiled, or gives something else than the weight's shape.
    """
    return {name: _traced(name, v) for name, v in variables.items() if getattr(v, "constraint", None) is not None}


def _traced(name: str, variable: Any) -> Constraint:
    import keras

    kind = type(variable.constraint).__name__
    advice = f"set its constraint to None before the build, or write {kind} with keras.ops alone"

    def project(weight: Any) -> Any:
        with keras.StatelessScope(state_mapping=[(variable, weight)]):
            return keras.ops.convert_to_tensor(variable.constraint(variable))

    spec = jax.ShapeDtypeStruct(tuple(variable.shape), "float32")
    try:
        graph = with_idioms(jax_frontend.trace_function(project, [spec]))
    except UnsupportedError as error:
        raise UnsupportedError(
            f"the constraint {kind} of {name}: {error}\n{advice}", error.sites, page="operations"
        ) from error
    except Exception as error:  # it is the author's code
        raise UnsupportedError(
            f"the constraint {kind} of {name} cannot be traced: {error}. {advice}", page="operations"
        ) from error
    (kept,) = graph.outputs.values()
    if kept.type != graph.inputs[0].type:
        raise UnsupportedError(
            f"the constraint {kind} of {name} makes {kept.type} of {graph.inputs[0].type}: {advice}", page="operations"
        )
    return Constraint(f"{kind}({_options(variable.constraint)})", graph)


def _options(constraint: Any) -> str:
    """Return its numbers, as they were given."""
    try:
        config = constraint.get_config()
    except Exception:  # one of the author's need not have a configuration
        return ""
    return ", ".join(f"{key}={value:g}" for key, value in config.items() if isinstance(value, int | float))
