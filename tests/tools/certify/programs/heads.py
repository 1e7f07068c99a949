"""Other heads, losses and optimizers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras import layers as kl

from tests.tools.certify.programs.made import PROGRAMS, Made, plain, program, stacked


@program
def several_outputs() -> Made:
    inputs = keras.Input((6,), name="x")
    x = kl.Dense(8, "relu")(inputs)
    outputs = {"kind": kl.Dense(4, name="kind")(x), "size": kl.Dense(2, name="size")(x)}
    losses = {"kind": "sparse_categorical_crossentropy", "size": "huber"}
    return keras.Model(inputs, outputs), {"optimizer": "adam", "update": "full", "loss": losses}


def perceptron(optimizer: str, loss: str, **options: Any) -> Made:
    model = stacked(kl.Dense(12, "softplus"), kl.LayerNormalization(), kl.Dense(5), row=(7,))
    return model, {"optimizer": optimizer, "update": "full", "loss": loss, **options}


for _optimizer, _loss in (
    ("sgd", "mse"), ("momentum", "mae"), ("adam", "log_cosh"), ("adamw", "cosine_similarity"), ("rmsprop", "hinge"),
    ("adagrad", "kl_divergence"), ("lion", "binary_focal_crossentropy"), ("adam", "categorical_focal_crossentropy"),
    ("sgd", "categorical_crossentropy"),
):  # fmt: skip
    PROGRAMS[f"perceptron_{_loss}"] = partial(perceptron, _optimizer, _loss)


@program
def micro_batches() -> Made:
    return perceptron("adam", "mse", micro_batch=2)


@program
def functions_of_every_kind() -> Made:
    def apply(p: Any, x: Any) -> Any:
        y = x @ p["w"]
        y = jnp.sin(y) + jnp.cos(2 * y) + jnp.sqrt(jnp.abs(y) + 0.1) + jnp.log1p(y * y) + jax.nn.softplus(y)
        y = y + jnp.cumsum(y, 1) + jnp.flip(y, 1) + jnp.where(y > 0, y, p["a"] * y) + jnp.clip(y, -1, 1)
        y = y / (1 + jnp.exp(-jnp.max(y, 1, keepdims=True))) + jnp.power(jnp.abs(y) + 1, 1.5) + jnp.arctan2(y, y + 3)
        return y @ p["head"]

    return plain(apply, {"w": (6, 8), "a": (8,), "head": (8, 3)}, (6,)), {"optimizer": "sgd", "update": "full"}
