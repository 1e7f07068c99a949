"""A program whose export is hard to resize, and what JAX makes of the trained weights: for Kotlin and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from models import CLASSES

import converter
from converter.runtime import TrainingSession
from jax_frontend import Model

#: Of the fixture; a step has as many as `batch` says.
ROWS = 6


def hard(params: dict, x: jax.Array) -> jax.Array:
    """float32 [B, 6, 6, 1] -> [B, 4]: operators whose shapes, constants or loops would hold a number of rows."""
    wide = lax.conv_transpose(x, params["up"], (2, 2), "SAME")
    columns = jnp.arctan(wide).mean(2).swapaxes(0, 1)

    def step(carry: jax.Array, column: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(column @ params["in"] + carry @ params["own"]), None

    carried, _ = lax.scan(step, jnp.zeros((x.shape[0], CLASSES)), columns)
    return carried + lax.top_k(jnp.sort(wide[:, 3, :, 0], -1), CLASSES)[0]


def write_rows(out: Path, batch: int) -> None:
    """Write OUT/rows.tflite, a state, the plain model with it, rows, and what JAX makes of them.

    Args:
        out: the folder.
        batch: rows of a step, other than of the fixture.
    """
    rng = np.random.default_rng(0)
    shapes = {"up": (3, 3, 1, 2), "in": (2, CLASSES), "own": (CLASSES, CLASSES)}
    params = {name: rng.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    source = Model(hard, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])
    options: dict[str, Any] = {"optimizer": "sgd", "loss": "mse", "batch": batch, "target": "tflite-2.16"}
    program = converter.build(source, state="stateless", **options)
    program.write(out / "rows.tflite")
    x = rng.standard_normal((ROWS, 6, 6, 1)).astype(np.float32)
    x.tofile(out / "rows.x")
    with TrainingSession(out / "rows.tflite") as session:
        session.train(rng.standard_normal((batch, 6, 6, 1), np.float32), np.zeros((batch, CLASSES), np.float32), 0.1)
        (out / "rows.state").unlink(missing_ok=True)
        session.save(out / "rows.state")
        program.export_inference(out / "rows.plain", session.state())
        trained = session.parameters()
    np.asarray(hard(trained, jnp.asarray(x))).tofile(out / "rows.output")
