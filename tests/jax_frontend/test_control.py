"""Nested calls, derivatives that the user wrote, loops and conditionals."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from converter.ir import ops
from tests.jax_frontend.common import check, op_names, traced

X = np.random.default_rng(0).standard_normal((3, 4))
W = np.random.default_rng(1).standard_normal((4, 4))


def test_nested_calls_are_inlined() -> None:
    @jax.jit
    def inner(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ w)

    def model(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jax.checkpoint(inner)(x, w)
        y = jax.remat(lambda y: inner(y, w), policy=jax.checkpoint_policies.dots_saveable)(y)
        return jax.named_call(inner, name="last")(y, w) + jax.vmap(lambda row: row @ w)(x + 1)

    graph = check(model, X, W)
    assert op_names(graph).count("MatMul") == 4
    assert op_names(graph).count("Relu") == 3


def test_vmap_and_grad_inside_of_the_model() -> None:
    def energy(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x) ** 2)

    check(jax.vmap(energy), X)
    check(jax.vmap(jax.grad(energy)), X)
    check(lambda x: jax.jvp(energy, (x,), (x,))[1], X)


def test_the_primal_of_a_custom_jvp() -> None:
    @jax.custom_jvp
    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * x

    f.defjvp(
        lambda primals, tangents: (f(*primals), (jnp.cos(primals[0]) * primals[0] + jnp.sin(primals[0])) * tangents[0])
    )
    check(f, X)


@jax.custom_vjp
def straight_through(x: jax.Array) -> jax.Array:
    return jnp.round(x)


straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


@jax.custom_vjp
def clipped_product(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x @ w, x.sum()


def _clipped_fwd(x: jax.Array, w: jax.Array) -> tuple[Any, Any]:
    y = x @ w
    return (y, x.sum()), {"x": x, "w": w, "size": jnp.abs(y).max()}


def _clipped_bwd(kept: dict[str, jax.Array], cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    g = jnp.clip(cotangents[0], -kept["size"], 1.0)
    return g @ kept["w"].T + 3 * cotangents[1], 2 * kept["x"].T @ g


clipped_product.defvjp(_clipped_fwd, _clipped_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def scaled(factor: float, x: jax.Array, function: Any) -> jax.Array:
    return function(x) * factor


scaled.defvjp(lambda factor, x, function: (function(x) * factor, x), lambda factor, function, x, g: (g * x * factor,))


@jax.custom_vjp
def looked_up(table: jax.Array, index: jax.Array) -> jax.Array:
    return table[index]


looked_up.defvjp(lambda t, i: (t[i], (t, i)), lambda kept, g: (jnp.zeros_like(kept[0]).at[kept[1]].add(g * 2), None))


def test_the_backward_function_of_a_custom_vjp_is_used() -> None:
    check(straight_through, X * 3)
    check(lambda x: straight_through(straight_through(x * 2) * 0.7 + x) ** 2, X)
    check(lambda x, w: clipped_product(x, w), X, W)
    check(lambda x, w: clipped_product(x * 2, w)[0] * 2, X, W)  # the other output has no cotangent
    check(lambda x: scaled(3.0, x, jnp.tanh), X)
    check(lambda t, i: looked_up(t, i), W, np.array([1, 1, 3]))
    check(jax.jit(jax.vmap(straight_through)), X)


def test_a_custom_vjp_that_nothing_flows_through() -> None:
    """The straight-through estimator's derivative is not that of round, which is zero."""
    graph = traced(lambda x: straight_through(x), X)
    assert any(isinstance(node.op, ops.CustomGradient) for node in graph.nodes)


LOOPS = {
    "carry": lambda x, w: lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0],
    "rows": lambda x, w: lax.scan(lambda c, row: (c * 0.5 + row, c.sum() + row), w[0], x),
    "from the end": lambda x, w: lax.scan(lambda c, row: (c + row, c), w[0], x, reverse=True),
    "layers": lambda x, w: lax.scan(lambda y, layer: (y @ layer, None), x, jnp.stack([w, w * 2]))[0],
    "for": lambda x, w: lax.fori_loop(0, 3, lambda i, y: y @ w + i, x),
    "map": lambda x, w: lax.map(lambda row: row @ w, x),
    "associative": lambda x, w: lax.associative_scan(jnp.multiply, x),
    "not used": lambda x, w: lax.scan(lambda c, row: (c + 1, row), 0, x)[1],
}


@pytest.mark.parametrize("name", LOOPS)
def test_short_loops_are_unrolled(name: str) -> None:
    check(LOOPS[name], X, W, tolerance=3e-5)


def test_conditionals() -> None:
    check(lambda x: lax.cond(x[0, 0] > 0, jnp.tanh, lambda x: x * 2, x), X)
    check(lambda x, i: lax.switch(i, [jnp.tanh, jnp.sin, lambda x: x * 2], x), X, np.int32(1))
    check(lambda x, i: lax.switch(i, [jnp.tanh, jnp.sin, lambda x: x * 2], x), X, np.int32(7))
    known = check(lambda x: lax.cond(np.bool_(True), jnp.tanh, lambda x: x * 2, x), X)
    assert op_names(known) == ["Tanh"]


def test_printing_is_left_out() -> None:
    def model(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x.sum())
        return x * 2

    assert op_names(traced(model, X)) == ["Mul"]
