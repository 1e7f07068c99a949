"""What rounding does inside a program: as large as the sums that it leaves nothing of, and no larger than that.

And in float16: decisions that may fall to either side do, and no others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import converter
import jax_frontend
from converter.program.file import ProgramFile, read_program
from converter.program.layers import Layers
from converter.tools.certify.conformance import FACTOR, LIMIT, Judge
from converter.tools.certify.reference import PROBE, Reference, ReferenceCall, calls, neighbours
from converter.tools.certify.rounding import DRAWS, draws


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


#: How far the input of a ReLU is from zero: of one unit within rounding to float16, of another not.
NEAR, FAR = 1e-4, 0.05


def halves() -> tuple[ProgramFile, list[ReferenceCall]]:
    """Two dense layers with a ReLU between, and calls of its gradients; in the last one units are next to zero."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape, np.float32) / 2 for name, shape in (("a", (6, 8)), ("b", (8, 3)))}
    model = jax_frontend.Model(
        lambda p, x: jax.nn.relu(x @ p["a"] + p["c"]) @ p["b"],
        params | {"c": np.zeros(8, np.float32)},
        [jax.ShapeDtypeStruct((1, 6), np.float32)],
    )
    settings: dict[str, Any] = {"signatures": ["train"], "state": "split", "check": False}
    made = read_program(converter.build(model, optimizer=optax.sgd(1.0), batch=4, **settings).data)
    first, *others = calls(made, 3)
    x = next(array for array in first.feed.values() if array.shape == (4, 6))
    # The third row turns unit 2 on by next to nothing, and unit 5 by more than that.
    bias = np.zeros_like(first.feed["c"])
    bias.flat[[2, 5]] = np.float32([NEAR, FAR]) - (x @ params["a"])[2, [2, 5]]
    return made, [*others, Reference(made).call("gradients", first.feed | {"c": bias}, 0)]


def test_a_decision_that_rounding_may_turn_is_excused_and_no_other() -> None:
    made, found = halves()
    call, cpu, layers = found[-1], Reference(made), Layers(made)
    judge = Judge(made.manifest, layers, found, "float16")
    size = np.abs(call.expected["gradient/a"]).max()
    assert judge.floor < 5e-3, "one call's decision is no gauge for all"

    def wrong(unit: int, amount: float) -> set[str]:
        """What is said of an engine to which the input of a unit is by so much smaller."""
        bias = call.feed["c"].copy()
        bias.flat[unit] -= amount
        results = cpu("gradients", call.feed | {"c": bias})
        transposed = np.abs(results["gradient/a"] - call.expected["gradient/a"]).max()
        assert transposed > 0.02 * size
        return {d.name for d in judge.deviations(call, results) if not d.is_right}

    assert wrong(2, 2 * NEAR) == set()
    assert {"gradient/a", "gradient/c"} <= wrong(5, 2 * FAR)
    # Of the unit that may be there or not, neither half is right, nor twice as much, nor the other sign.
    bias = call.feed["c"].copy()
    bias.flat[2] -= 2 * NEAR
    transposed = cpu("gradients", call.feed | {"c": bias})["gradient/a"]
    for share in (0.35, 0.65, -1, 2):
        between = call.expected["gradient/a"] + np.float32(share) * (transposed - call.expected["gradient/a"])
        (off,) = (d for d in judge.deviations(call, call.expected | {"gradient/a": between}) if not d.is_right)
        assert off.name == "gradient/a"
        assert off.error > off.limit
    # The other units are held to what they were held to before.
    other = call.expected["gradient/a"] + np.float32(0.01 * size) * (np.arange(8) == 7)
    (off,) = (d for d in judge.deviations(call, call.expected | {"gradient/a": other}) if not d.is_right)
    assert off.name == "gradient/a"


def test_in_float16_each_number_becomes_one_of_two() -> None:
    made, found = halves()
    entry = Layers(made).entry("gradients")
    results = draws(entry, found[0].feed, "float16")
    assert len(results) == DRAWS["float16"]
    for name in found[0].expected:
        every = np.stack([other[name] for other in results])
        np.testing.assert_array_equal(every, every.astype(np.float16), err_msg=name)
        assert len({array.tobytes() for array in every}) > 1, name
        size = np.abs(found[0].expected[name]).max()
        assert 2**-12 < np.abs(every - found[0].expected[name]).max() / size < 2**-5, name
