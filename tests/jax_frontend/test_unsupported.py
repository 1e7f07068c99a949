"""What cannot be compiled is reported all at once: each place with its layer, the user's line, and what to do."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_frontend
from converter.passes.idioms import with_idioms
from converter.support.errors import UnsupportedError

X = np.ones((2, 4), np.float32)


def report(apply: Any, params: Any = None) -> str:
    specs = [jax.ShapeDtypeStruct((1, 4), jnp.float32)]
    with pytest.raises(UnsupportedError) as caught:
        with_idioms(jax_frontend.trace(jax_frontend.Model(apply, params or {}, specs), 2))
    assert caught.value.exit_code == 3
    return str(caught.value)


def line_of(text: str) -> int:
    """Number of the line of this file that ends with a marker."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def model(p: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope("encoder"):
        x = jnp.nextafter(x @ p["encoder"]["w"], 1.0)  # first
        with jax.named_scope("mixer"):
            x = x + jnp.fft.fft(x).real  # transform
    x = jnp.tanh(x)
    with jax.named_scope("head"):
        return x + jnp.nextafter(x + 1, 1.0)  # second


def test_all_places_are_reported_with_layer_line_and_advice() -> None:
    text = report(model, {"encoder": {"w": np.ones((4, 4))}})
    assert "uses 2 operations" in text
    for layer, marker in (("encoder", "first"), ("encoder/mixer", "transform")):
        assert f"in layer {layer} at tests/jax_frontend/test_unsupported.py:{line_of(marker)} in model" in text
    assert "compute it outside the model" in text
    assert "complex numbers, as in fft" in text
    assert text.count("  nextafter\n") == 1
    assert f"in layer head at tests/jax_frontend/test_unsupported.py:{line_of('second')} in model" in text


def test_places_that_do_not_follow_from_each_other_are_grouped() -> None:
    def two(p: Any, x: jax.Array) -> jax.Array:
        a = jnp.nextafter(x, 1.0)  # one
        return a + jnp.nextafter(x * 2, 1.0) + jnp.linalg.cholesky(x[:, :2]).sum()  # other

    text = report(two)
    assert text.splitlines()[0] == "The model uses 2 operations that Pocketune cannot compile:"
    assert f":{line_of('one')} " in text
    assert text.count(f":{line_of('other')} ") == 2
    assert "factorise outside the model" in text


def test_what_follows_from_a_problem_is_not_a_problem_of_its_own() -> None:
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = nn.Dense(3)(x)
            return y * jax.random.bernoulli(self.make_rng("noise"), 0.5, y.shape)

    net = Noisy()
    params = net.init({"params": jax.random.key(0), "noise": jax.random.key(0)}, X)
    text = report(lambda p, x: net.apply(p, x, rngs={"noise": jax.random.key(1)}), params)
    assert "turn dropout and noise off" in text
    assert "layer Noisy" in text
    assert len(text.splitlines()) <= 8


def test_inside_of_calls_loops_and_backward_functions() -> None:
    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return x

    f.defvjp(lambda x: (x, x), lambda kept, g: (jnp.nextafter(g, 1.0),))  # backward

    def nested(p: Any, x: jax.Array) -> jax.Array:
        y = jax.jit(lambda x: jnp.linalg.cholesky(x[:, :2]))(x)  # call
        z, _ = lax.scan(lambda c, _: (jnp.fft.fft(c).real * 2, None), x, None, length=3)  # loop
        return f(x) + y.sum() + z

    text = report(nested)
    assert "uses 3 operations" in text
    for marker in ("backward", "call", "loop"):
        assert text.count(f":{line_of(marker)} ") == 1


def test_a_layer_is_named_by_its_parameters_where_there_is_no_scope() -> None:
    graph = with_idioms(
        jax_frontend.trace(
            jax_frontend.Model(
                lambda p, x: jax.nn.relu(jnp.einsum("bi,ij->bj", x, p["blocks"][0]["w"]) + p["blocks"][0]["b"]) * 2,
                {"blocks": [{"w": np.ones((4, 4)), "b": np.ones(4)}]},
                [jax.ShapeDtypeStruct((1, 4), jnp.float32)],
            ),
            2,
        )
    )
    assert {node.origin.layer for node in graph.nodes} == {"blocks/0"}
    assert all(node.origin.source.startswith("tests/jax_frontend/test_unsupported.py:") for node in graph.nodes)


def test_what_nothing_needs_is_not_reported() -> None:
    def unused(p: Any, x: jax.Array) -> jax.Array:
        jnp.nextafter(x, 1.0)
        return x * 2

    specs = [jax.ShapeDtypeStruct((1, 4), jnp.float32)]
    assert len(with_idioms(jax_frontend.trace(jax_frontend.Model(unused, {}, specs), 2)).nodes) == 1
