"""Loops that stay loops, through front end, derivative, lowering and the stock interpreter, against JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import converter
from converter.cli.inspection import count_operators
from converter.driver.functions import Function
from converter.ir import evaluate, ops, verify
from tests.jax_frontend.common import op_names, traced

RNG = np.random.default_rng(0)


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return RNG.uniform(-scale, scale, shape).astype(np.float32)


def like(expected: Any, found: list[np.ndarray], tolerance: float) -> None:
    for mine, theirs in zip(found, map(np.asarray, jax.tree_util.tree_leaves(expected)), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        size = max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(mine, theirs, atol=tolerance * size, rtol=0)


def same_as_jax(fn: Callable[..., Any], *arguments: Any, tolerance: float = 1e-5) -> Function:
    """Values and cotangents of all float arguments; returns the program."""
    places = [k for k, array in enumerate(arguments) if np.asarray(array).dtype == np.float32]

    def of_floats(*given: Any) -> Any:
        filled = list(map(jnp.asarray, arguments))
        for k, array in zip(places, given, strict=True):
            filled[k] = array
        return fn(*filled)

    outputs, pull_back = jax.vjp(jax.jit(of_floats), *(arguments[k] for k in places))
    cotangents = jax.tree_util.tree_map(
        lambda y: f(*y.shape) if y.dtype == jnp.float32 else np.zeros(y.shape, jax.dtypes.float0), outputs
    )
    program = converter.function(fn, *arguments, gradient=True)
    floats = [c for c in jax.tree_util.tree_leaves(cotangents) if c.dtype == np.float32]
    like([*jax.tree_util.tree_leaves(outputs), *pull_back(cotangents)], program.run(*arguments, *floats), tolerance)
    return program


def loops(program: Function) -> int:
    return sum(operators.get("WHILE", 0) for operators in count_operators(program.data).values())


W = f(4, 4, scale=0.5)
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "carry alone": (lambda x, w: lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=300)[0], [f(2, 4), W]),
    "rows alone": (lambda xs, w: lax.scan(lambda c, x: (c, jnp.tanh(x @ w)), 0, xs)[1], [f(300, 4), W]),
    "both, from the end": (
        lambda c, xs, w: lax.scan(lambda c, x: (jnp.tanh(c @ w + x), jnp.sin(c) * x), c, xs, reverse=True),
        [f(4), f(300, 4), W],
    ),
    "trees": (
        lambda c, xs: lax.scan(
            lambda c, x: ({"a": c["b"] * x[0], "b": c["a"] + x[1]}, (c["a"].sum(), {"y": x[0] * c["b"]})), c, xs
        ),
        [{"a": f(3), "b": f(3)}, (f(101, 3), f(101))],
    ),
    "a counter and a flag": (
        lambda x: lax.scan(lambda c, r: ((c[0] + 1, c[1] ^ True), jnp.where(c[1], r, r * c[0])), (0, True), x)[1],
        [f(200, 3)],
    ),
    "a value handed on as it is": (
        lambda x, w: lax.scan(lambda c, _: ((c[0] * c[1], c[1]), None), (x, w), None, length=300)[0],
        [f(3), 1 + f(3, scale=0.01)],
    ),
    "values that change places": (
        lambda x, y: lax.scan(lambda c, _: ((c[1], c[0] * 0.99), c[0]), (x, y), None, length=301),
        [f(3), f(3)],
    ),
    "a result nobody reads": (
        lambda x, w: lax.scan(lambda c, r: ((c[0] * 0.9 + r, c[1] @ c[1]), (c[0], c[1].sum())), (x[0], w), x)[0][0],
        [f(300, 4), W],
    ),
    "one in another": (
        lambda c, xs, w: lax.scan(
            lambda c, x: (lax.scan(lambda d, s: (jnp.tanh(d @ w + s), d.sum()), c, x)[0], c), c, xs
        ),
        [f(4), f(40, 50, 4), W],
    ),
    "fori_loop": (
        lambda x, w: lax.fori_loop(0, 200, lambda k, v: jnp.tanh(v * w) + x[k % 5] * k * 0.01, x),
        [f(5), f(5)],
    ),
    "writing into an array": (
        lambda x: lax.fori_loop(1, 200, lambda k, v: v.at[k].set(v[k - 1] * 0.9 + v[k]), x),
        [f(200)],
    ),
    "a known array": (lambda c: lax.scan(lambda c, x: (jnp.tanh(c + x), None), c, jnp.linspace(0, 1, 300))[0], [f(3)]),
    "the layers of a stack": (
        lambda x, layers: lax.scan(lambda y, w: (jax.nn.relu(y @ w + 0.1), None), x, layers)[0],
        [f(2, 4), f(100, 4, 4)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_equals_jax(name: str) -> None:
    fn, arguments = CASES[name]
    leaves, tree = jax.tree_util.tree_flatten(tuple(arguments))
    program = same_as_jax(lambda *flat: fn(*jax.tree_util.tree_unflatten(tree, flat)), *leaves)
    assert loops(program) >= 2  # forward and backward


@settings(max_examples=4, deadline=None)
@given(
    length=st.integers(66, 700),
    batch=st.integers(1, 3),
    width=st.integers(1, 5),
    reverse=st.booleans(),
    stacks=st.booleans(),
)
def test_any_length_and_shape(length: int, batch: int, width: int, reverse: bool, stacks: bool) -> None:
    def rnn(c: Any, xs: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            c = jnp.tanh(c @ w + x)
            return c, jax.nn.sigmoid(c * x) if stacks else None

        return lax.scan(step, c, xs, reverse=reverse)

    same_as_jax(rnn, f(batch, width), f(length, batch, width), f(width, width, scale=0.5), tolerance=2e-5)


def test_the_size_does_not_grow_with_the_length() -> None:
    def rnn(xs: Any, w: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.tanh(c @ w + x), c), jnp.zeros((8, 32)), xs)

    short, long = (converter.function(rnn, f(n, 8, 32), f(32, 32), gradient=True).data for n in (400, 900))
    assert abs(len(long) - len(short)) < 200  # the digits of shapes
    assert list(count_operators(long).values()) == list(count_operators(short).values())


def test_what_the_backward_loop_reads_is_little() -> None:
    """The state and the sum before the gates are kept, not what is made of them."""

    def cell(c: Any, x: Any, w: Any) -> Any:
        z = c @ w + x
        i, g, o, r = jnp.split(z, 4, -1)
        return jnp.tanh(jax.nn.sigmoid(i) * jnp.tanh(g)) * jax.nn.sigmoid(o) * jnp.tanh(r), None

    def rnn(w: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: cell(c, x, w), jnp.zeros((2, 8)), xs)[0]

    program = converter.function(rnn, f(8, 32), f(300, 2, 32), gradient=True)
    forward, backward = (node for node in program.graph.nodes if isinstance(node.op, ops.Scan))
    assert sorted(v.shape for v in forward.outputs[1:]) == [(300, 2, 8), (300, 2, 32)]
    assert len(backward.op.body.outputs) == 3  # of the state, the weight and the rows


WHILES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "data": (
        lambda x, w: lax.while_loop(lambda v: jnp.abs(v[0]).sum() < 99, lambda v: (v[0] * w + 1, v[1] + 1), (x, 0)),
        [abs(f(4)), 1 + abs(f(4))],
    ),
    "a count that is given": (
        lambda x, n: lax.fori_loop(0, n, lambda k, v: jnp.sin(v) + k, x),
        [f(4), np.int32(9)],
    ),
    "no step at all": (lambda x, n: lax.fori_loop(0, n, lambda k, v: v + 1, x), [f(4), np.int32(0)]),
    "a flag and an exchange": (
        lambda x, y, n: lax.while_loop(
            lambda v: (v[2] < n) & v[3], lambda v: (v[1], v[0], v[2] + 1, v[2] < 4), (x, y, 0, True)
        ),
        [f(3), f(3), np.int32(7)],
    ),
    "a long count": (
        lambda x: lax.while_loop(lambda v: v[1] < 900, lambda v: (v[0] * 0.9 + jnp.sin(v[0]), v[1] + 1), (x, 0)),
        [f(3)],
    ),
    "in a scan": (
        lambda x: lax.scan(lambda c, r: (lax.while_loop(lambda v: v.sum() < 5, lambda v: v * 2, c + r), c), x[0], x),
        [1 + abs(f(90, 3))],
    ),
}


@pytest.mark.parametrize("name", WHILES)
def test_a_loop_of_unknown_length_equals_jax(name: str) -> None:
    fn, arguments = WHILES[name]
    program = converter.function(fn, *arguments)
    like(jax.jit(fn)(*arguments), program.run(*arguments), 1e-5)
    graph = verify(program.graph)
    outputs, _ = evaluate(graph, {v.name: np.asarray(a) for v, a in zip(graph.inputs, arguments, strict=True)})
    like(jax.jit(fn)(*arguments), list(outputs.values()), 1e-5)


BOUNDED: dict[str, Callable[[Any], Any]] = {
    "a counter and a condition": lambda x: lax.while_loop(
        lambda s: (s[0] < 40) & (s[1].sum() < 9), lambda s: (s[0] + 1, jnp.sin(s[1]) * 2 + 0.1), (0, x)
    )[1],
    "at most, by twos": lambda x: lax.while_loop(
        lambda s: jnp.logical_and(jnp.any(s[1] < 2), s[0] <= 7), lambda s: (s[0] + 2, s[1] * 1.2), (jnp.int32(1), x)
    )[1],
    "each row its own end": jax.vmap(
        lambda v: lax.while_loop(lambda s: (s[0] < 9) & (s[1] < 2), lambda s: (s[0] + 1, s[1] * 1.5), (0, v))[1]
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_loop_that_bounds_a_counter_has_a_derivative(name: str) -> None:
    fn, x = BOUNDED[name], np.array([0.5, 1.1, 0.3, 1.9], np.float32)
    y, slopes = converter.function(fn, x, gradient=True).run(x, np.ones(4, np.float32))
    like(fn(x), [y], 1e-6)
    step = 1e-2
    for k in range(4):
        moved = [x + sign * step * np.eye(4, dtype=np.float32)[k] for sign in (1, -1)]
        slope = (np.sum(fn(moved[0])) - np.sum(fn(moved[1]))) / (2 * step)
        assert abs(slopes[k] - slope) <= 1e-2 * max(1, abs(slope))


def test_rows_of_a_loop_end_each_by_themselves() -> None:
    fn = jax.vmap(lambda v: lax.while_loop(lambda c: c < 10, lambda c: c * 1.5, v))
    x = np.array([0.5, 1, 20, 3], np.float32)
    like(fn(x), converter.function(fn, x).run(x), 1e-6)


def test_a_derivative_through_a_loop_of_unknown_length_is_refused() -> None:
    def fn(x: jax.Array) -> jax.Array:
        with jax.named_scope("search"):
            return lax.while_loop(lambda v: v.sum() < 99, lambda v: v * 2, x)

    with pytest.raises(converter.UnsupportedError, match="counter in its condition") as caught:
        converter.function(fn, abs(f(3)), gradient=True)
    (site,) = caught.value.sites
    assert (site.primitive, site.layer) == ("While", "search")
    assert site.source.startswith("tests/driver/test_loops.py:")


def test_a_problem_in_a_body_is_reported_once_with_its_layer() -> None:
    def fn(x: jax.Array) -> jax.Array:
        def step(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            with jax.named_scope("spectrum"):
                return jnp.fft.fft(c).real, None

        return lax.scan(step, x, None, length=1000)[0]

    with pytest.raises(converter.UnsupportedError) as caught:
        converter.function(fn, f(3))
    (site,) = caught.value.sites
    assert (site.primitive, site.layer) == ("fft", "spectrum")


@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_row_alone_is_not_stacked(reverse: bool) -> None:
    def rnn(xs: Any, w: Any) -> Any:
        rows = lax.scan(lambda c, x: (jnp.tanh(c @ w + x),) * 2, jnp.zeros(4), xs, reverse=reverse)[1]
        return rows[0] if reverse else rows[-1]

    program = same_as_jax(rnn, f(300, 4), W)
    forward = next(node for node in program.graph.nodes if isinstance(node.op, ops.Scan))
    inference = converter.function(rnn, f(300, 4), W).graph
    assert [len(node.outputs) for node in inference.nodes if isinstance(node.op, ops.Scan)] == [1]
    assert len(forward.outputs) == 2  # the state, and the states that the derivative reads


def test_short_loops_are_unrolled() -> None:
    graph = traced(lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0], f(3))
    assert op_names(graph) == ["Mul"] * 3
    graph = traced(lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=300)[0], f(3))
    assert op_names(graph) == ["Scan"]


def test_no_step_and_no_elements() -> None:
    fn = lambda c, xs: lax.scan(lambda c, x: (c * x.sum(), c + 1), c, xs)  # noqa: E731
    like(fn(jnp.ones(2), jnp.ones((0, 3))), converter.function(fn, f(2) * 0 + 1, f(0, 3)).run(np.ones(2), f(0, 3)), 0)
