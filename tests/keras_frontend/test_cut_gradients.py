"""Gradients that are cut off in front of infinite ones, in Keras' own functions and layers on JAX."""

from __future__ import annotations

import keras
import pytest
from keras import activations, layers, ops

from tests.jax_frontend.test_cut_gradients import Function, together

CUTS: dict[str, Function] = {
    "relu": ops.relu,
    "relu6": ops.relu6,
    "activations.relu": activations.relu,
    "activations.relu to 4": lambda v: activations.relu(v, max_value=4.0),
    "activations.relu from 1": lambda v: activations.relu(v, threshold=1.0),
    "hard_sigmoid": activations.hard_sigmoid,
    "hard_silu": activations.hard_silu,
    "hard_tanh": activations.hard_tanh,
    "hard_shrink": activations.hard_shrink,
    "soft_shrink": activations.soft_shrink,
    "threshold": lambda v: activations.threshold(v, 0.5, 0.0),
    "leaky_relu": activations.leaky_relu,
    "clip": lambda v: ops.clip(v, 0.0, 6.0),
    "maximum": lambda v: ops.maximum(v, 0.0),
    "where": lambda v: ops.where(v > 0, v, 0.0),
    "layers.ReLU": lambda v: layers.ReLU(max_value=4.0)(v),
    "max_pool": lambda v: ops.max_pool(v[..., None], 2, 1)[..., 0],
    "max": lambda v: ops.max(ops.relu(v), -1),
}
POLES: dict[str, Function] = {
    "sqrt": ops.sqrt,
    "log": ops.log,
    "rsqrt": ops.rsqrt,
    "norm": lambda v: ops.norm(v, axis=-1),
    "where_log": lambda v: ops.where(v > 0, ops.log(v), 0.0),
    "divide_no_nan": lambda v: ops.divide_no_nan(1.0, v),
}
ALL = [(f"{g}({f})", pole, cut) for f, cut in CUTS.items() for g, pole in POLES.items()]

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="compared with Keras on JAX")


@pytest.mark.quick
def test_roots_are_as_in_keras() -> None:
    assert together([pair for pair in ALL if pair[0].startswith("sqrt(")], 20) == []


@pytest.mark.slow
def test_all_are_as_in_keras() -> None:
    assert together(ALL) == []
