"""How the programs are made, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from flax import linen as nn

import jax_frontend

Made = tuple[Any, dict[str, Any]]
#: By name: a model, and what else `build` is told.
PROGRAMS: dict[str, Callable[[], Made]] = {}


def program(make: Callable[[], Made]) -> Callable[[], Made]:
    PROGRAMS[make.__name__] = make
    return make


def drawn(shape: Any, seed: int = 0) -> Any:
    """Weights: a shape, or a dict of such."""
    if isinstance(shape, dict):
        return {name: drawn(part, seed + number) for number, (name, part) in enumerate(shape.items())}
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0] if len(shape) > 1 else 9))


def plain(apply: Any, shapes: Any, row: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """A model in plain JAX."""
    return jax_frontend.Model(apply, drawn(shapes), [jax.ShapeDtypeStruct((1, *row), dtype)])


def linen(module: nn.Module, row: tuple[int, ...]) -> Any:
    """One in Flax."""
    x = jax.ShapeDtypeStruct((1, *row), np.float32)
    params = jax.tree.map(np.asarray, module.init(jax.random.key(0), np.zeros((1, *row), np.float32))["params"])
    return jax_frontend.Model(lambda p, x: module.apply({"params": p}, x), params, [x])


def stacked(*layers: Any, row: tuple[int, ...], dtype: str = "float32") -> Any:
    """One in Keras."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input(row, dtype=dtype), *layers])
