"""Programs whose channels are redrawn, with weights in several layouts, and what the host draws: for the trainers."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from models import CLASSES

import converter
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.runtime.export import export_inference
from jax_frontend import Model

#: Of the draw.
SEED = 5


def net(params: dict, x: jax.Array) -> jax.Array:
    """float32 [B, 6, 6, 1] -> [B, 4]: a filter, a matrix, and a matrix for each of two heads."""
    layout = ("NHWC", "HWIO", "NHWC")
    for filters in (params["first"], params["second"]):
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, filters, (2, 2), "SAME", dimension_numbers=layout))
    hidden = jax.nn.relu(x.reshape(x.shape[0], -1) @ params["dense"]).reshape(x.shape[0], 2, 6)
    each = jnp.einsum("bhi,hio->bho", hidden, params["heads"])
    return each.reshape(x.shape[0], -1) @ params["last"]


def write_redrawn(out: Path, batch: int) -> None:
    """Write OUT/redrawn.tflite, OUT/redrawn-by-2.tflite with micro-batches, and OUT/redrawn.channels.

    These are what the host says that trains after a draw by a seed, int32, one weight after the other; the last one's
    channels stay.
    """
    rng = np.random.default_rng(0)
    shapes = {"first": (3, 3, 1, 6), "second": (3, 3, 6, 8), "dense": (32, 12), "heads": (2, 6, 5)}
    shapes |= {"last": (10, CLASSES)}
    params = {
        name: jnp.asarray(rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), "float32")
        for name, shape in shapes.items()
    }
    model = Model(net, params, [jax.ShapeDtypeStruct((1, 6, 6, 1), "float32")])
    half = converter.Channels(0.5, redrawn=True)
    options = {
        "update": {"second": half, "dense": half, "heads": half, "last": converter.Channels(0.5)},
        "batch": batch,
        "target": "tflite-2.16",
        "signatures": ("train", "evaluate", "infer", "fisher"),
    }
    converter.build(model, optimizer="adam", **options).write(out / "redrawn.tflite")
    converter.build(model, optimizer="momentum", state="stateless", micro_batch=2, **options).write(
        out / "redrawn-by-2.tflite"
    )
    with TrainingSession(out / "redrawn.tflite") as session:
        np.concatenate(list(session.redraw_channels(seed=SEED).values())).astype(np.int32).tofile(
            out / "redrawn.channels"
        )
    write_redrawn_file(out, batch)


def write_redrawn_file(out: Path, batch: int) -> None:
    """Write OUT/redrawn-filed.tflite of an app's own file, a state in which something is added, and it exported."""
    export_inference(read_program(out / "redrawn.tflite"), out / "redrawn-shipped.tflite")
    program = converter.build(
        out / "redrawn-shipped.tflite",
        loss="sparse_categorical_crossentropy",
        update="channels-50-redrawn",
        state="stateless",
        batch=batch,
        target="tflite-2.16",
    )
    program.write(out / "redrawn-filed.tflite")
    x = np.random.default_rng(1).normal(size=(batch, 6, 6, 1)).astype(np.float32)
    with TrainingSession(program.data) as session:
        session.train(x, np.arange(batch, dtype=np.int32) % CLASSES, 0.1)
        session.redraw_channels(seed=SEED)
        session.train(x, np.arange(batch, dtype=np.int32) % CLASSES, 0.1)
        (out / "redrawn-filed.state").unlink(missing_ok=True)
        session.save(out / "redrawn-filed.state")
        program.export_inference(out / "redrawn-filed.plain", session.state())
