"""`jax_frontend.Model`: a function or module with its parameters, how these are named, and which of them train."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import numpy as np

from converter.ir import is_described
from converter.support.errors import NumericError, UsageError, nearest
from converter.support.libraries import loaded
from jax_frontend.modules import is_module


@dataclass(frozen=True)
class Model:
    """A JAX model: `apply(params, *inputs) -> outputs`, or a module of Flax or Equinox.

    Attributes:
        apply: the forward function; pure, no randomness. Or a module that holds its weights (nnx, a bound one of linen,
            Equinox), or one of linen, of which `params` are the variables. Layers of Flax and Equinox are traced as
            they infer; their dropout acts in a step where a build asks for it, and so do batch statistics of Flax.
        params: such a module, of which `apply` is a function then, or any pytree of arrays, or of jax.ShapeDtypeStruct
            (as `jax.eval_shape` gives) where the model is only planned (`pocketune.compare_schemes`), or of
            `converter.ir.LazyArray`, whose numbers are read when the program needs them. A floating point
            leaf is a parameter, named by its path joined with "/" (`layers/0/w`); any other leaf is a constant. Half
            precision is computed in float32. Of Flax' variables only the collection `params` trains (`batch_stats` and
            the like do not), of an nnx state only nnx.Param.
        inputs: shape and dtype of each input; the first axis is the batch, and is replaced by the batch asked for.
        layers: path prefixes that name the blocks of the model in order, for schemes such as "the last 3 blocks".
        frozen: names, path prefixes or globs of further parameters that never train, whatever the update scheme says.
        name: what the program is called; empty: the name of the function, of the class for a method or a module.

    Raises:
        UsageError: `inputs` are no shapes with a batch axis, or there is neither a function nor a module.
    """

    apply: Callable[..., Any] | None
    params: Any = None
    inputs: Sequence[jax.ShapeDtypeStruct] = ()
    layers: Sequence[str] | None = None
    frozen: Sequence[str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if is_module(self.apply):
            self._take_module(self.apply)
        elif self.apply is None and not is_module(self.params):
            raise UsageError(
                f"a Model is a function apply(params, *inputs) or a module, not {self.params!r}", page="models"
            )
        if not self.name:
            object.__setattr__(self, "name", _called(self.params if self.apply is None else self.apply))
        if not isinstance(self.inputs, Sequence):
            raise UsageError(f"inputs of a Model is a list, one entry an input, not {self.inputs!r}", page="models")
        if not self.inputs and self.apply is None:
            raise UsageError(
                f"{self.name} does not say what it takes: inputs=[jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32')], "
                "one entry an input, the first axis the batch",
                page="models",
            )
        for spec in self.inputs:
            if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
                raise UsageError(
                    f"inputs of a Model are jax.ShapeDtypeStruct(shape, dtype), not {spec!r}", page="models"
                )
            if not spec.shape:
                raise UsageError(
                    "an input of a Model has no axes: the first axis of every input is the batch", page="models"
                )

    def _take_module(self, module: Any) -> None:
        """Takes a module in the place of a function: with its variables, or as what holds its own weights."""
        method = None if self.params is None else getattr(module, "apply", None)
        if self.params is not None and method is None:
            raise UsageError(
                f"{type(module).__name__} holds its weights itself: leave params out, or pass a function "
                "(module, *inputs) -> outputs first and the module as params",
                page="models",
            )
        object.__setattr__(self, "apply", method)
        if method is None:
            object.__setattr__(self, "params", module)


def _called(function: Any) -> str:
    """Return the name of a function, or of the class of a method, callable or module; `model` where there is none."""
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    named = function if owner is None else type(owner)
    name = getattr(named, "__name__", type(function).__name__)
    return "model" if name == "<lambda>" else str(name)


def named_leaves(params: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by path, joined by "/", in tree order.

    Raises:
        UsageError: two leaves have the same path.
    """
    variables = _variables(params)
    names: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = _name(path[:-1] if path[:-1] in variables else path)
        if name in names:
            raise UsageError(f"two parameters have the path {name!r}: rename one of the dictionary keys", page="models")
        names[name] = leaf
    return names


def output_names(result: Any) -> list[str]:
    """Return names of the leaves of what a function returns.

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
        raise UsageError(f"two outputs have the path {repeated[0]!r}: rename one of the dictionary keys", page="models")
    return names


def own_output_names(result: Any) -> dict[str, str]:
    """Return the path of the only leaf of what a function returns, by its name in the graph, where it has a key."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(result)[0]]
    keyed = len(paths) == 1 and any(not isinstance(key, jax.tree_util.SequenceKey) for key in paths[0])
    return {"output": "/".join(map(_key, paths[0]))} if keyed else {}


def argument_names(model: Model) -> list[str]:
    """Return what a model calls its inputs, the first of them; none where it does not say so."""
    function: Any = model.apply
    options = dict[str, Any]()
    while isinstance(function, partial):
        function, options = function.func, function.keywords | options
    owner = getattr(function, "__self__", None)
    called: Any = model.apply
    before = 1  # the parameters
    if model.apply is None or (is_module(owner) and "method" not in options):  # called by itself, or by linen's apply
        called, before = owner or model.params, 0
    try:
        given = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # what is written in C has none
        return []
    return [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][before:]


def untrained(model: Model, params: Any, names: Sequence[str]) -> set[str]:
    """Return those of the parameters `names`, the leaves of `params`, that the model itself keeps fixed.

    Raises:
        UsageError: an entry of `frozen` is no name, prefix or glob of any.
    """
    kinds = {_name(path): kind for path, kind in _variables(params).items()}
    fixed = {name for name, kind in kinds.items() if kind != "Param"}
    if isinstance(params, Mapping) and isinstance(params.get("params"), Mapping):
        fixed |= {name for name in names if not name.startswith("params/")}
    for pattern in model.frozen:
        found = {n for n in names if fnmatchcase(n, pattern) or n.startswith(f"{pattern.rstrip('/')}/")}
        if not found:
            raise UsageError(
                f"frozen: {pattern!r} is no parameter of {model.name}.{nearest(pattern, names)}", page="models"
            )
        fixed |= found
    return fixed.intersection(names)


def _name(path: Sequence[Any]) -> str:
    return "/".join(_key(k) for k in path) or "params"


def _key(key: Any) -> str:
    """Return one step of a path as the user would write it."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _variables(params: Any) -> dict[tuple[Any, ...], str]:
    """Paths of flax.nnx variables, whose `.value` is no part of a name, and their kinds: Param, BatchStat, ..."""
    nnx = loaded("flax.nnx")
    if nnx is None:
        return {}

    def kind(node: Any) -> str | None:
        if not isinstance(node, nnx.Variable):
            return None
        classes = [c.__name__ for c in type(node).__mro__ if getattr(nnx, c.__name__, None) is c]
        return "Param" if isinstance(node, nnx.Param) else classes[0]

    found = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda node: kind(node) is not None)[0]
    return {path: name for path, node in found if (name := kind(node)) is not None}


def is_parameter(leaf: Any) -> bool:
    """Return whether a leaf is a tensor that could train: floating point (a Python float counts)."""
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
