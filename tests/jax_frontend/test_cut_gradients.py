"""Gradients that are cut off in front of infinite ones, g(f(v)): not finite where JAX's are not, 0 where they are 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pocketune

#: Kinks, what lies beside them, ties, and numbers that functions below make 0.
POINTS = np.array([[-3, -1, 0, 0.5, 1, 3, 6, 7], [1, 0, -7, 2, 2, -0.5, 0.25, -2]], np.float32)

Function = Callable[[Any], Any]

_SIGNS = jnp.arange(8) % 2 == 0
_PLACES = jnp.array([[1, 3, 5], [0, 2, 2]])

#: Activations and other functions of single numbers.
CUTS: dict[str, Function] = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": jax.nn.leaky_relu,
    "leaky_relu_0": lambda v: jax.nn.leaky_relu(v, 0.0),
    "elu": jax.nn.elu,
    "celu": jax.nn.celu,
    "selu": jax.nn.selu,
    "hard_tanh": jax.nn.hard_tanh,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_silu": jax.nn.hard_silu,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "sigmoid": jax.nn.sigmoid,
    "maximum": lambda v: jnp.maximum(v, 0.0),
    "minimum": lambda v: jnp.minimum(v, 1.0),
    "clip": lambda v: jnp.clip(v, 0.0, 6.0),
    "clip_above": lambda v: jnp.clip(v, 1.0, 2.0),
    "lax_clamp": lambda v: lax.clamp(0.0, v, 6.0),
    "where": lambda v: jnp.where(v > 0, v, 0.0),
    "where_at_0": lambda v: jnp.where(v >= 0, v, 0.0),
    "where_6": lambda v: jnp.where(v > 0, jnp.where(v < 6, v, 6.0), 0.0),
    "masked": lambda v: jnp.where(_SIGNS, v, 0.0),
    "masked_relu": lambda v: jnp.where(_SIGNS, jax.nn.relu(v), 1.0),
    "times_mask": lambda v: v * (v > 0),
    "times_masks": lambda v: v * (v > 0) * (v < 6) + 6.0 * (v >= 6),
    "soft_threshold": lambda v: jnp.sign(v) * jnp.maximum(jnp.abs(v) - 0.5, 0.0),
    "hard_shrink": lambda v: jnp.where(jnp.abs(v) > 0.5, v, 0.0),
    "sparse_plus": jax.nn.sparse_plus,
    "sparse_sigmoid": jax.nn.sparse_sigmoid,
    "abs": jnp.abs,
    "square": jnp.square,
    "relu_squared": lambda v: jax.nn.relu(v) ** 2,
    "relu_of_relu": lambda v: jax.nn.relu(1.0 - jax.nn.relu(v)),
    "relu_of_sum": lambda v: jax.nn.relu(v - 2.0) + jax.nn.relu(-v - 2.0),
    "floor": jnp.floor,
    "stopped": lambda v: lax.stop_gradient(v) + 0 * v,
    "select_n": lambda v: lax.select_n((v > 0).astype(jnp.int32), jnp.zeros_like(v), v),
    "cond": lambda v: lax.cond(True, jax.nn.relu, lambda w: w, v),
    "nan_to_num": lambda v: jnp.nan_to_num(jnp.log(v)),
    "piecewise": lambda v: jnp.piecewise(v, [v < 0, v >= 0], [lambda w: 0.0 * w, lambda w: w]),
}
#: Of whole rows: they move numbers, or take some of them.
OF_ROWS: dict[str, Function] = {
    "max": lambda v: jnp.max(jax.nn.relu(v), -1),
    "min": lambda v: jnp.min(jax.nn.relu(v), -1),
    "sum": lambda v: jnp.sum(jax.nn.relu(v - 6.5), -1),
    "mean_where": lambda v: jnp.sum(jnp.where(v > 9, v, 0.0), -1),
    "sort": lambda v: jnp.sort(jax.nn.relu(v), -1),
    "top_k": lambda v: lax.top_k(jax.nn.relu(v), 6)[0],
    "slice": lambda v: v[:, 2:5],
    "strided": lambda v: jax.nn.relu(v)[:, ::3],
    "reversed": lambda v: jax.nn.relu(v)[:, ::-1],
    "rolled": lambda v: jnp.roll(jax.nn.relu(v), 3, -1),
    "pad": lambda v: jnp.pad(jax.nn.relu(v), ((0, 0), (1, 2))),
    "interior": lambda v: lax.pad(jax.nn.relu(v), 0.0, ((0, 0, 1), (0, 0, 2))),
    "joined": lambda v: jnp.concatenate([jax.nn.relu(v), 0 * v + 1, jax.nn.relu(-v)], -1),
    "taken": lambda v: jnp.take_along_axis(jax.nn.relu(v), _PLACES, -1),
    "gathered": lambda v: jax.nn.relu(v)[:, jnp.array([0, 2, 5, 2])],
    "one_of_each": lambda v: jax.nn.relu(v)[jnp.arange(2), jnp.array([2, 1])],
    "one_hot": lambda v: jnp.sum(jax.nn.one_hot(jnp.array([2, 1]), 8) * jax.nn.relu(v), -1),
    "set": lambda v: jax.nn.relu(v).at[:, 3].set(0.0),
    "added": lambda v: jnp.zeros((2, 4)).at[:, jnp.array([0, 1, 1, 2, 0, 3, 3, 2])].add(jax.nn.relu(v)),
    "segments": lambda v: jax.ops.segment_sum(jax.nn.relu(v).T, jnp.array([0, 0, 1, 1, 2, 3, 3, 3]), 4),
    "triangle": lambda v: jnp.tril(jax.nn.relu(v)),
    "cumsum": lambda v: jnp.cumsum(jax.nn.relu(v), -1),
    "cummax": lambda v: lax.cummax(jax.nn.relu(v), 1),
    "max_pool": lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
    "max_pool_apart": lambda v: lax.reduce_window(jax.nn.relu(v), -jnp.inf, lax.max, (1, 3), (1, 1), "SAME"),
    "sum_pool": lambda v: lax.reduce_window(jax.nn.relu(v), 0.0, lax.add, (1, 2), (1, 2), "VALID"),
    "dynamic": lambda v: lax.dynamic_slice(jax.nn.relu(v), (0, jnp.argmax(v[0]) - 4), (2, 3)),
    "split": lambda v: jnp.split(jax.nn.relu(v), 2, -1)[1],
    "reshaped": lambda v: jax.nn.relu(v).reshape(4, 4).T,
    "scan": lambda v: lax.scan(lambda c, r: (c, jax.nn.relu(r)), 0.0, v)[1],
    "scan_carry": lambda v: lax.scan(lambda c, r: (jax.nn.relu(r - c), c), jnp.zeros(8), v)[0],
    "loop": lambda v: lax.fori_loop(0, 3, lambda i, w: jax.nn.relu(w - 0.5), v),
    "map": lambda v: lax.map(jax.nn.relu6, v),
    "long_scan": lambda v: lax.scan(lambda c, i: (jax.nn.relu(c - i * 0.01), 0), v, jnp.arange(300.0))[0],
    "vmapped": lambda v: jax.vmap(lambda r: jnp.where(r[0] > 0, r, 0.0))(v),
    "checkpoint": lambda v: jax.checkpoint(lambda w: jax.nn.relu(w) * 2)(v),
}
#: Functions with an infinite slope, or none, at numbers that those above make.
POLES: dict[str, Function] = {
    "sqrt": jnp.sqrt,
    "log": jnp.log,
    "rsqrt": lax.rsqrt,
    "reciprocal": lambda v: 1 / v,
    "power": lambda v: v**0.5,
    "power_of": lambda v: jnp.power(v, 0.3),
    "inverse_square": lambda v: v**-2,
    "log1p": lambda v: jnp.log1p(-v),
    "log2": jnp.log2,
    "norm": lambda v: jnp.linalg.norm(v, axis=-1),
    "normalized": lambda v: v / jnp.linalg.norm(v, axis=-1, keepdims=True),
    "std": lambda v: jnp.std(v * 0, axis=-1),
    "xlogy": lambda v: jax.scipy.special.xlogy(v, v),
    "entropy": jax.scipy.special.entr,
    "where_log": lambda v: jnp.where(v > 0, jnp.log(v), 0.0),
    "safe_log": lambda v: jnp.where(v > 0, jnp.log(jnp.where(v > 0, v, 1.0)), 0.0),
    "where_quotient": lambda v: jnp.where(v != 0, 1 / v, 0.0),
    "atan2": lambda v: jnp.arctan2(v, v),
    "max_log": lambda v: jnp.maximum(jnp.log(v), -5.0),
    "cbrt": jnp.cbrt,
    "arcsin": lambda v: jnp.arcsin(1 - v),
    "arccosh": lambda v: jnp.arccosh(1 + v),
    "arctanh": lambda v: jnp.arctanh(1 - v),
    "hypot": lambda v: jnp.hypot(v, v),
    "exp": lambda v: 1 / (1 + jnp.exp(v * 100)),
    "relu_of_log": lambda v: jax.nn.relu(jnp.log(v) + 3),
    "times_log": lambda v: v * jnp.log(v),
    "scan_sqrt": lambda v: lax.scan(lambda c, r: (c, jnp.sqrt(r)), 0.0, v)[1],
}
ALL = [(f"{g}({f})", POLES[g], cut) for (f, cut), g in product((CUTS | OF_ROWS).items(), POLES)]


def wrong(pairs: list[tuple[str, Function, Function]]) -> Iterator[str]:
    """Yield what of the derivatives of functions, compiled together, is not JAX's."""

    def functions(*arrays: Any) -> list[Any]:
        return [g(f(v)) for (_, g, f), v in zip(pairs, arrays, strict=True)]

    points = [POINTS] * len(pairs)
    values, pull_back = jax.vjp(functions, *points)
    ones = [np.ones(v.shape, np.float32) for v in values]
    made = pocketune.function(functions, *points, gradient=True).run(*points, *ones)[len(pairs) :]
    for (name, _, _), found, expected in zip(pairs, made, map(np.asarray, pull_back(ones)), strict=True):
        with np.errstate(invalid="ignore"):
            near = np.abs(found - expected) <= 1e-4 * np.maximum(1, np.abs(expected))
        # An average pool of NaN is -inf in XNNPACK: what is not finite need not be the same (docs/special-values.md).
        same = np.where(np.isfinite(expected), near, ~np.isfinite(found))
        if not same.all():
            yield f"{name} at {POINTS[~same]}: {found[~same]}, JAX {expected[~same]}"


def together(pairs: list[tuple[str, Function, Function]], many: int = 12) -> list[str]:
    return [said for k in range(0, len(pairs), many) for said in wrong(pairs[k : k + many])]


@pytest.mark.quick
def test_some_are_as_in_jax() -> None:
    """One of each kind; the rest is left to the slow run."""
    chosen = {
        "sqrt(relu)", "log(relu6)", "rsqrt(where)", "reciprocal(hard_sigmoid)", "norm(where_6)", "sqrt(maximum)",
        "xlogy(clip)", "sqrt(times_mask)", "log(leaky_relu_0)", "sqrt(silu)", "relu_of_log(celu)", "sqrt(max_pool)",
        "sqrt(max_pool_apart)", "log(taken)", "sqrt(one_hot)", "sqrt(max)", "sqrt(scan)", "atan2(relu)",
    }  # fmt: skip
    pairs = [pair for pair in ALL if pair[0] in chosen]
    assert len(pairs) == len(chosen)
    assert together(pairs, len(pairs)) == []


@pytest.mark.slow
@pytest.mark.parametrize("pole", POLES)
def test_all_are_as_in_jax(pole: str) -> None:
    assert together([pair for pair in ALL if pair[0].startswith(f"{pole}(")]) == []


def test_nothing_changes_where_no_gradient_is_infinite() -> None:
    """The quick mask of a ReLU stays: nothing is compared and selected."""

    def operators(function: Function) -> set[str]:
        return {node.op.name for node in pocketune.function(function, POINTS, gradient=True).graph.nodes}

    assert "Select" not in operators(lambda v: jnp.tanh(jax.nn.relu(v)) / jnp.sqrt(v * v + 1e-6))
    assert "Select" in operators(lambda v: jnp.sqrt(jax.nn.relu(v)))
