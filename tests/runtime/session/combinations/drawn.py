"""Draws a program with class means: a net, and options that go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import converter
from jax_frontend import Model

KINDS = ("dense", "maps", "pixels", "series", "file")
OWN, WIDTH, BATCH = 3, 6, 4
#: The shape of a row.
_SHAPES = {"dense": (7,), "maps": (6, 6, 3), "pixels": (6, 6, 3), "series": (5, 4), "file": (7,)}


@dataclass(frozen=True)
class Combination:
    """What is asked of a program.

    Attributes:
        kind: of the net: dense layers, convolutions, these of images as bytes, recurrent, or dense ones of a file.
        later: classes that there is room for.
        reads: `head_reads`.
        frozen: how frozen layers are stored.
        optimizer: by name.
        loss: by name.
        softmax: whether the net ends in one.
        several: whether the file has a second head.
        state: who keeps the state.
        micro_batch: rows that are computed at once.
    """

    kind: str
    later: int
    reads: str | None
    frozen: str
    optimizer: str
    loss: str
    softmax: bool
    several: bool
    state: str | None
    micro_batch: int | None

    @property
    def total(self) -> int:
        """Rows of the last layer."""
        return OWN + self.later


def drawn(seed: int) -> Combination:
    """Return a combination; the kinds take turns."""
    rng, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    several = bool(rng.random() < 0.3)
    later = 0 if kind == "file" else int(rng.integers(0, 4))
    return Combination(
        kind,
        later,
        None if kind == "series" else [None, "blocks", "blocks:1"][rng.integers(3)],
        "int8" if kind in ("maps", "pixels") and rng.random() < 0.5 else "float32",
        ["sgd", "momentum", "adam"][rng.integers(3)],
        ["sparse_categorical_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy"][
            rng.integers(3)
        ],
        bool(rng.random() < 0.5),
        several,
        None if several or later else [None, "stateless"][rng.integers(2)],
        [None, 2][rng.integers(2)],
    )


def rows_of(one: Combination, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows as the program takes them."""
    if one.kind == "pixels":
        return rng.integers(0, 256, (count, *_SHAPES[one.kind]), np.uint8)
    return rng.normal(size=(count, *_SHAPES[one.kind])).astype(np.float32)


def net(one: Combination, last: int = 0) -> Model:
    """Return the net; `last` says which last layer it has."""
    rng = np.random.default_rng(11)

    def weights(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    if one.kind in ("maps", "pixels"):
        params = {"first": weights(3, 3, 3, WIDTH), "second": weights(3, 3, WIDTH, WIDTH)}
    else:
        params = {"first": weights(_SHAPES[one.kind][-1], WIDTH), "second": weights(WIDTH, WIDTH)}
    rng = np.random.default_rng(last)
    params["last"] = {"w": weights(WIDTH, OWN), "b": weights(OWN, 1)[:, 0]}

    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def hidden(params: Any, x: jax.Array) -> jax.Array:
        if one.kind == "series":

            def step(held: jax.Array, at: jax.Array) -> tuple[jax.Array, None]:
                return jnp.tanh(at @ params["first"] + held @ params["second"]), None

            return jax.lax.scan(step, jnp.zeros((x.shape[0], WIDTH)), jnp.swapaxes(x, 0, 1))[0]
        product = convolved if x.ndim == 4 else jnp.matmul
        for name in ("first", "second"):
            with jax.named_scope(name):
                x = jax.nn.relu(product(x, params[name]))
        return x.mean((1, 2)) if x.ndim == 4 else x

    def apply(params: Any, x: jax.Array) -> jax.Array:
        logits = hidden(params, x) @ params["last"]["w"] + params["last"]["b"]
        return jax.nn.softmax(logits) if one.softmax else logits

    return Model(apply, params, [jax.ShapeDtypeStruct((1, *_SHAPES[one.kind]), "float32")])


def program_of(one: Combination, folder: Path) -> tuple[bytes, str | None]:
    """Return the file, and which head of it is meant; the folder is for files of nets."""
    options: dict[str, Any] = {"update": "head", "head": "class_means", "batch": BATCH, "check": False}
    options |= {"optimizer": one.optimizer, "loss": one.loss, "frozen": one.frozen, "micro_batch": one.micro_batch}
    options |= {"classes": f"{OWN}+{one.later}" if one.later else None, "head_reads": one.reads, "state": one.state}
    options |= {"preprocess": "0..1" if one.kind == "pixels" else None}
    if one.frozen == "int8":
        options["calibration"] = rows_of(one, 20, np.random.default_rng(3))
    if one.kind == "file":
        options["classes"] = OWN
    models = [
        _as_file(net(one, last), folder / f"{last}.tflite") if one.kind == "file" else net(one, last)
        for last in range(2)
    ]
    if not one.several:
        return bytes(converter.build(models[0], **options).data), None
    return bytes(converter.build_heads({"mine": models[0], "other": models[1]}, **options).data), "mine"


def _as_file(model: Model, path: Path) -> Path:
    """Return the file of a net."""
    return converter.build(model, update="head", batch=1, check=False, optimizer="sgd").export_inference(path)
