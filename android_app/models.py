"""The small models that the programs of the tests train."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_frontend import Model

CLASSES = 4
WORDS, WIDTH, LAYERS = 60, 64, 3


def mlp(params: dict, x: jax.Array) -> jax.Array:
    """float32 [B, 6, 6, 1] -> [B, 4]."""
    hidden = jax.nn.relu(x.reshape(x.shape[0], -1) @ params["a"]["w"] + params["a"]["b"])
    return hidden @ params["b"]["w"] + params["b"]["b"]


def two(params: dict, x: jax.Array) -> dict[str, jax.Array]:
    """float32 [B, 6, 6, 1] -> [B, 4] and [B, 2]."""
    both = mlp(params, x)
    return {"kind": both[:, :CLASSES], "size": both[:, CLASSES:]}


def cnn(params: dict, x: jax.Array) -> jax.Array:
    """float32 [B, 6, 6, 1] -> [B, 4]."""
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(x, params["conv"], (2, 2), "SAME", dimension_numbers=layout)
    # As of a batch norm: what the weights alone decide is computed when the plain model is exported.
    hidden = jax.nn.relu(hidden * params["scale"] + params["shift"])
    return hidden.reshape(x.shape[0], -1) @ params["w"] + params["b"]


def model(name: str, rng: np.random.Generator) -> Model:
    """Return a small model with weights of its own."""

    def weight(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[:-1])))

    if not name.startswith("cnn"):
        apply, outputs = (two, CLASSES + 2) if name == "two" else (mlp, CLASSES)
        params = {
            "a": {"w": weight(36, 16), "b": jnp.zeros(16)},
            "b": {"w": weight(16, outputs), "b": jnp.zeros(outputs)},
        }
        return Model(apply, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])
    params = {"conv": weight(3, 3, 1, 6), "w": weight(54, CLASSES), "b": jnp.zeros(CLASSES)}
    params |= {"scale": jnp.linspace(0.5, 1.5, 6), "shift": jnp.zeros(6)}
    return Model(cnn, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])


def mixing(params: dict, x: jax.Array) -> jax.Array:
    """float32 [B, 6, 6, 1] -> [B, 4]; what a row gives depends on the batch."""
    outputs = mlp(params, x)
    return outputs - outputs.mean(0)


def reads(params: dict, x: jax.Array) -> jax.Array:
    """float32 [B, 6, 6, 1] -> logits of the word behind, [B, WORDS], by a decoder whose embedding is its head."""
    words = jnp.clip(jnp.floor(20 * jnp.abs(x.reshape(x.shape[0], 36))), 0, WORDS - 1).astype(jnp.int32)
    states = params["words"][words]
    seen = np.tril(np.ones((36, 36), bool))
    for layer in params["layers"]:
        normed = states * jax.lax.rsqrt(jnp.square(states).mean(-1, keepdims=True) + 1e-5)
        query, key, value = (normed @ layer[name] for name in ("query", "key", "value"))
        scores = jnp.where(seen, query @ key.swapaxes(1, 2) / WIDTH**0.5, -1e9)
        states = states + jax.nn.softmax(scores) @ value
        states = states + jax.nn.silu(states @ layer["up"]) @ layer["down"]
    return states[:, -1] @ params["words"].T


def decoder() -> Model:
    """Return such a decoder."""
    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns)).astype(np.float32) / np.float32(2 * np.sqrt(rows))

    square, hidden = (WIDTH, WIDTH), 2 * WIDTH
    shapes = {"query": square, "key": square, "value": square, "up": (WIDTH, hidden), "down": (hidden, WIDTH)}
    layers = [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    params = {"words": weight(WORDS, WIDTH), "layers": layers}
    return Model(reads, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])


def squared(classes: int = CLASSES, frozen: float = 1.0, squash: Any = jnp.tanh) -> Model:
    """Return a model with a square matrix, which targets store one or the other way round, behind a frozen layer."""
    rng = np.random.default_rng(5)

    def weight(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape).astype(np.float32) / np.sqrt(shape[0]))

    def apply(params: dict, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x.reshape(x.shape[0], -1) @ params["first"]["w"] * params["first"]["scale"])
        return squash(hidden @ params["square"]) @ params["head"]["w"] + params["head"]["b"]

    params = {
        "first": {"w": weight(36, 192), "scale": jnp.full(192, frozen)},
        "square": weight(192, 192),
        "head": {"w": weight(192, classes), "b": jnp.zeros(classes)},
    }
    return Model(apply, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])


def chained() -> Model:
    """Return a model in which the name of a weight is the end of another's."""
    rng = np.random.default_rng(6)
    shapes = {"square": (36, 36), "my_square": (36, 36), "head": (36, CLASSES)}
    params = {name: rng.standard_normal(shape).astype(np.float32) / 6 for name, shape in shapes.items()}

    def apply(params: dict, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x.reshape(x.shape[0], -1) @ params["square"])
        return jnp.tanh(hidden @ params["my_square"]) @ params["head"]

    return Model(apply, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])
