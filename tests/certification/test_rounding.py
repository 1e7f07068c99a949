"""What rounding does inside a program: as large as the sums that it leaves nothing of, and no larger than that."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import converter
import jax_frontend
from converter.certification.judge import FACTOR, LIMIT, Judge
from converter.certification.reference import PROBE, calls, neighbours
from converter.certification.rounding import draws
from converter.layers import Layers
from converter.program.file import ProgramFile, read_program


def program() -> ProgramFile:
    """A bias that a normalization takes away again, behind a pool whose gradient asks where the largest number is."""
    rng = np.random.default_rng(0)

    def apply(p: Any, x: Any) -> Any:
        x = jax.lax.reduce_window(jnp.tanh(x * p["scale"]), -jnp.inf, jax.lax.max, (1, 2, 1), (1, 2, 1), "VALID")
        y = x.mean(1) @ p["w"] + p["bias"]
        y = y - y.mean(-1, keepdims=True)
        return y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)

    params = {"scale": rng.standard_normal(6, np.float32), "w": rng.standard_normal((6, 5), np.float32)}
    model = jax_frontend.Model(
        apply, params | {"bias": np.float32([0.3])}, [jax.ShapeDtypeStruct((1, 8, 6), np.float32)]
    )
    settings: dict[str, Any] = {"signatures": ["train"], "state": "stateless", "check": False}
    return read_program(converter.build(model, optimizer=optax.sgd(1.0), batch=4, **settings).data)


def test_rounding_is_no_fault_and_hides_none() -> None:
    made = program()
    layers, (call, *_) = Layers(made), list(calls(made, 1, rate=PROBE))
    bias = next(spec.name for spec in made.manifest.signatures["train"].outputs if "bias" in spec.name)

    def moved(results: Any, name: str) -> Any:
        return results[name].astype(float) - call.feed[name]

    names = [spec.name for spec in made.manifest.signatures["train"].giving("state")]
    sizes = {name: np.abs(moved(call.expected, name)).max() for name in names}
    assert sizes[bias] < 1e-4 * min(size for name, size in sizes.items() if name != bias)  # in truth it is zero
    others = draws(layers.entry("train"), call.feed)
    spread = {n: max(np.abs(moved(r, n) - moved(call.expected, n)).max() for r in others) for n in names}
    assert FACTOR * spread[bias] > sizes[bias]
    assert all(FACTOR * spread[name] < LIMIT * sizes[name] for name in names if name != bias)

    judge = Judge(made.manifest, layers, [call], "float32")

    def wrong(**others: Any) -> set[str]:
        return {d.name for d in judge.deviations(call, call.expected | others) if not d.is_right}

    assert wrong(**{bias: call.feed[bias] + np.float32(2 * spread[bias])}) == set()
    assert wrong(**{bias: call.feed[bias] + np.float32(20 * spread[bias])}) == {bias}
    for name in names:
        if name != bias:
            assert wrong(**{name: call.expected[name] + np.float32(3 * LIMIT * sizes[name])}) == {name}


def test_neighbours_are_neighbours() -> None:
    largest = np.finfo(np.float32).max
    array = np.float32([0, 1, -2.5, 1e-30, largest, -largest, np.inf, -np.inf])
    made = np.stack([neighbours(array, np.random.default_rng(seed)) for seed in range(20)])
    assert made.dtype == np.float32
    moves = (made[:, 1:4] - array[1:4]) / np.spacing(np.abs(array[1:4]))
    assert set(np.unique(np.abs(moves))) <= {0.5, 1}  # below a power of two they are half as far away
    assert all(len(np.unique(column)) == 2 for column in made[:, 1:4].T)
    assert (made[:, [0, 4, 5, 6, 7]] == array[[0, 4, 5, 6, 7]]).all()
