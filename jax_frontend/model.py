"""`jax_frontend.Model`: a function with its parameters, how the parameters are named, and which of them train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import numpy as np

from converter.errors import NumericError, UsageError, nearest
from converter.ir import is_described


@dataclass(frozen=True)
class Model:
    """A JAX model: `apply(params, *inputs) -> outputs`.

    Attributes:
        apply: the forward function; pure, no randomness.
        params: any pytree of arrays, or of jax.ShapeDtypeStruct (as `jax.eval_shape` gives) where the model is only
            planned (`converter.compare_schemes`). A floating point leaf is a parameter, named by its path joined with
            "/" (`layers/0/w`); any other leaf is a constant. Half precision is computed in float32. Of Flax' variables
            only the collection `params` trains (`batch_stats` and the like do not), of an nnx state only nnx.Param.
        inputs: shape and dtype of each input; the first axis is the batch, and is replaced by the batch asked for.
        layers: path prefixes that name the blocks of the model in order, for schemes such as "the last 3 blocks".
        frozen: names, path prefixes or globs of further parameters that never train, whatever the update scheme says.
    """

    apply: Callable[..., Any]
    params: Any
    inputs: Sequence[jax.ShapeDtypeStruct]
    layers: Sequence[str] | None = None
    frozen: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Sequence):
            raise UsageError(f"inputs of a Model is a list, one entry an input, not {self.inputs!r}")
        for spec in self.inputs:
            if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
                raise UsageError(f"inputs of a Model are jax.ShapeDtypeStruct(shape, dtype), not {spec!r}")
            if not spec.shape:
                raise UsageError("an input of a Model has no axes: the first axis of every input is the batch")

    @property
    def name(self) -> str:
        """The function's name, the class' for a method or a callable object, `model` where there is none."""
        function = self.apply
        while isinstance(function, partial):
            function = function.func
        owner = getattr(function, "__self__", None)
        named = function if owner is None else type(owner)
        name = getattr(named, "__name__", type(function).__name__)
        return "model" if name == "<lambda>" else name


def named_leaves(params: Any) -> dict[str, Any]:
    """The leaves of a pytree by path, joined by "/", in tree order.

    Raises:
        UsageError: two leaves have the same path.
    """
    variables = _variables(params)
    names: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = _name(path[:-1] if path[:-1] in variables else path)
        if name in names:
            raise UsageError(f"two parameters have the path {name!r}: rename one of the dictionary keys")
        names[name] = leaf
    return names


def output_names(result: Any) -> list[str]:
    """Names of the leaves of what a function returns.

    Raises:
        UsageError: two leaves have the same path.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(result)[0]]
    if len(paths) == 1:
        return ["output"]
    if all(len(path) == 1 and isinstance(path[0], jax.tree_util.SequenceKey) for path in paths):
        return [f"output_{i}" for i in range(len(paths))]
    names = [_name(path) for path in paths]
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UsageError(f"two outputs have the path {repeated[0]!r}: rename one of the dictionary keys")
    return names


def untrained(model: Model, names: Sequence[str]) -> set[str]:
    """Those of the parameters `names` that the model itself keeps fixed.

    Raises:
        UsageError: an entry of `frozen` is no name, prefix or glob of any.
    """
    kinds = {_name(path): kind for path, kind in _variables(model.params).items()}
    fixed = {name for name, kind in kinds.items() if kind != "Param"}
    if isinstance(model.params, Mapping) and isinstance(model.params.get("params"), Mapping):
        fixed |= {name for name in names if not name.startswith("params/")}
    for pattern in model.frozen:
        found = {n for n in names if fnmatchcase(n, pattern) or n.startswith(f"{pattern.rstrip('/')}/")}
        if not found:
            raise UsageError(f"frozen: {pattern!r} is no parameter of {model.name}.{nearest(pattern, names)}")
        fixed |= found
    return fixed.intersection(names)


def _name(path: Sequence[Any]) -> str:
    return "/".join(_key(k) for k in path) or "params"


def _key(key: Any) -> str:
    """One step of a path as the person would write it."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _variables(params: Any) -> dict[tuple[Any, ...], str]:
    """Paths of flax.nnx variables, whose `.value` is no part of a name, and their kinds: Param, BatchStat, ..."""

    def kind(node: Any) -> str | None:
        classes = [c.__name__ for c in type(node).__mro__ if c.__module__.startswith("flax.nnx")]
        if "Variable" not in classes:
            return None
        return "Param" if "Param" in classes else classes[0]

    found = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda node: kind(node) is not None)[0]
    return {path: name for path, node in found if (name := kind(node)) is not None}


def is_parameter(leaf: Any) -> bool:
    """Whether a leaf is a tensor that could train: floating point (a Python float counts)."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, float)
    return bool(jax.dtypes.issubdtype(dtype, np.floating))


def check_finite(parameters: dict[str, np.ndarray]) -> None:
    """Raises NumericError naming the parameters that hold NaN."""
    known = {name: array for name, array in parameters.items() if not is_described(array)}
    broken = {name: int(np.isnan(array).sum()) for name, array in known.items() if np.isnan(array).any()}
    if broken:
        listed = "\n".join(f"  {name}: {count} of {parameters[name].size} elements" for name, count in broken.items())
        raise NumericError(f"The model's weights hold NaN (not a number):\n{listed}")
