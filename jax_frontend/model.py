"""`jax_frontend.Model`: a function with its parameters, and how the parameters are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from converter.errors import NumericError, UsageError


@dataclass(frozen=True)
class Model:
    """A JAX model: `apply(params, *inputs) -> outputs`.

    Attributes:
        apply: the forward function; pure, no randomness.
        params: any pytree of arrays. A floating point leaf is a parameter, named by its path joined with "/"
            (`layers/0/w`); any other leaf is a constant.
        inputs: shape and dtype of each input; the first axis is the batch, and is replaced by the batch asked for.
        layers: path prefixes that name the blocks of the model in order, for schemes such as "the last 3 blocks".
    """

    apply: Callable[..., Any]
    params: Any
    inputs: Sequence[jax.ShapeDtypeStruct]
    layers: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for spec in self.inputs:
            if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
                raise UsageError(f"inputs of a Model are jax.ShapeDtypeStruct(shape, dtype), not {spec!r}")
            if not spec.shape:
                raise UsageError("an input of a Model has no axes: the first axis of every input is the batch")


def named_leaves(params: Any) -> dict[str, Any]:
    """The leaves of a pytree by path, joined by "/", in tree order.

    Raises:
        UsageError: two leaves have the same path.
    """
    variables = _variable_paths(params)
    names: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        keys = path[:-1] if path[:-1] in variables else path
        name = "/".join(_key(k) for k in keys) or "params"
        if name in names:
            raise UsageError(f"two parameters have the path {name!r}: rename one of the dictionary keys")
        names[name] = leaf
    return names


def _key(key: Any) -> str:
    """One step of a path as the person would write it."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _variable_paths(params: Any) -> set[tuple[Any, ...]]:
    """Paths of flax.nnx variables: their `.value` is no part of a name."""

    def is_variable(node: Any) -> bool:
        return any(c.__module__.startswith("flax.nnx") and c.__name__ == "Variable" for c in type(node).__mro__)

    found = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_variable)[0]
    return {path for path, node in found if is_variable(node)}


def is_parameter(leaf: Any) -> bool:
    """Whether a leaf is a tensor that could train: floating point (a Python float counts)."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, float)
    return bool(jax.dtypes.issubdtype(dtype, np.floating))


def check_finite(parameters: dict[str, np.ndarray]) -> None:
    """Raises NumericError naming the parameters that hold NaN."""
    broken = {name: int(np.isnan(array).sum()) for name, array in parameters.items() if np.isnan(array).any()}
    if broken:
        listed = "\n".join(f"  {name}: {count} of {parameters[name].size} elements" for name, count in broken.items())
        raise NumericError(f"The model's weights hold NaN (not a number):\n{listed}")
