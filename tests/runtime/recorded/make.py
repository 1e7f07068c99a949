"""What older versions of Pocketune left on phones: a program, a state of it, and its numbers. Run with their code.

    PYTHONPATH=OLD_CLONE python tests/runtime/recorded/make.py OUT NAME

Writes OUT/NAME.state, OUT/NAME.tflite.gz and OUT/NAME.npz: the rows `x`, what the program infers for them with that
state, the weights by the model's names (in its own layout), and the state's tensors as that program stores them
(`stored:...`). NAME is the commit.
"""

from __future__ import annotations

import gzip
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

UPDATE = {"square": 1, "head/*": 1}
OPTIONS: dict[str, Any] = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}
WIDTH, CLASSES, ROWS = 4, 3, 4


def apply(params: Any, x: jax.Array) -> jax.Array:
    """Return the logits of a net with a square matrix, whose shape does not say which way round it lies."""
    hidden = jnp.tanh(x @ params["frozen"])
    return jnp.tanh(hidden @ params["square"]) @ params["head"]["w"] + params["head"]["b"]


def model() -> Any:
    """Return the model that every version builds."""
    try:
        from jax_frontend import Model
    except ImportError:  # as it was in the beginning
        from converter.models import Model
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal((WIDTH, n)).astype(np.float32) / 2 for n in (WIDTH, WIDTH, CLASSES)]
    params = {"frozen": drawn[0], "square": drawn[1], "head": {"w": drawn[2], "b": np.zeros(CLASSES, np.float32)}}
    return Model(apply, params, [jax.ShapeDtypeStruct((1, WIDTH), jnp.float32)])


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return x and y."""
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    return x, np.arange(ROWS, dtype=np.int32) % CLASSES


def main(out: Path, name: str) -> None:
    """Make the three files of a version."""
    import converter
    from converter.runtime import TrainingSession

    fewest = {"signatures": ("train", "infer")} if "signatures" in signature(converter.build).parameters else {}
    program = converter.build(model(), update=UPDATE, batch=ROWS, **OPTIONS, **fewest)
    (out / f"{name}.tflite.gz").write_bytes(gzip.compress(program.data, 9, mtime=0))
    x, y = rows()
    with TrainingSession(program.data) as session:
        for _ in range(5):
            session.train(x, y, learning_rate=0.05)
        (out / f"{name}.state").unlink(missing_ok=True)
        session.save(out / f"{name}.state")
        stored = {f"stored:{key}": array for key, array in session.state().items()}
        np.savez_compressed(out / f"{name}.npz", x=x, infer=session.infer(x), **session.parameters(), **stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
