"""Nets whose classes come at run time, and rows of their classes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import converter
from jax_frontend import Model

INPUTS, HIDDEN, OWN, LATER = 7, 9, 4, 3
NAMES = ["one", "two", "three", "four"]


def small_model(transposed: bool = False, softmax: bool = False, hidden: int = HIDDEN, classes: int = OWN) -> Model:
    """A net of one hidden layer and random weights, its last layer [inputs, classes] or the other way round."""
    rng = np.random.default_rng(3)
    shapes = ((INPUTS, hidden), (hidden, classes), (classes,))
    first, last, bias = (rng.normal(size=s).astype(np.float32) for s in shapes)

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        hidden, w = jax.nn.relu(x @ params["first"]), params["last"]["w"]
        logits = hidden @ (w.T if transposed else w) + params["last"]["b"]
        return jax.nn.softmax(logits) if softmax else logits

    params = {"first": first, "last": {"w": last.T.copy() if transposed else last, "b": bias}}
    return Model(apply, params, [jax.ShapeDtypeStruct((1, INPUTS), "float32")])


def built(model: Model | None = None, **options: Any) -> converter.Program:
    """A program with room for classes, and class means."""
    asked = {"update": "head", "head": "class_means", "classes": f"{OWN}+{LATER}", "batch": 4, "labels": NAMES}
    return converter.build(model or small_model(), **{**asked, "optimizer": "adam", "check": False, **options})


def rows_of_classes(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Rows around a centre for each class, and their labels."""
    rng = np.random.default_rng(5)
    y = (np.arange(count) % OWN).astype(np.int32)
    centres = rng.normal(size=(OWN, INPUTS)) * 2
    return (centres[y] + rng.normal(size=(count, INPUTS))).astype(np.float32), y


def passing(bias: float, classes: int = OWN) -> Model:
    """A last layer of zeros that reads the inputs times one."""
    last = {"w": np.zeros((INPUTS, classes), np.float32), "b": np.full(classes, bias, np.float32)}
    params = {"first": np.eye(INPUTS, dtype=np.float32), "last": last}

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        return (x @ params["first"]) @ params["last"]["w"] + params["last"]["b"]

    return Model(apply, params, [jax.ShapeDtypeStruct((1, INPUTS), "float32")])
