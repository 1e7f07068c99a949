"""Traces a JAX function and compares the graph with JAX itself: the values, and the derivatives of all float inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_frontend
from converter.ir import Builder, Graph, TensorType, evaluate, ops
from converter.passes.autodiff import differentiate
from converter.passes.idioms import with_idioms


def narrowed(array: Any) -> np.ndarray:
    """The array in an element type of the IR."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.int32) if array.dtype.kind in "iu" else array


def traced(fn: Callable[..., Any], *arrays: Any) -> Graph:
    """The graph of `fn` for arrays like these."""
    return with_idioms(jax_frontend.trace_function(fn, [TensorType(a.shape, a.dtype) for a in map(narrowed, arrays)]))


def op_names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def with_gradients(graph: Graph, seed: int = 0) -> Graph:
    """Adds outputs `d<i>`: the derivative of a random weighted sum of the float outputs by float input i."""
    b = Builder(graph.copy())
    terms = []
    for value, weight in weighted(list(graph.outputs.values()), seed):
        product = b(ops.Mul(), value, b.constant(weight))
        terms.append(b(ops.Sum(tuple(range(len(product.shape)))), product))
    total = terms[0]
    for term in terms[1:]:
        total = b(ops.Add(), total, term)
    result, found = differentiate(b.graph, total, [v for v in graph.inputs if v.dtype.kind == "f"])
    for i, value in enumerate(graph.inputs):
        if value in found:
            result.outputs[f"d{i}"] = found[value]
    return result


def weighted(outputs: list[Any], seed: int) -> list[tuple[Any, np.ndarray]]:
    """A random weight for each float output."""
    rng = np.random.default_rng(seed)
    pairs = [(y, np.asarray(rng.uniform(0.5, 1.5, y.shape), np.float32)) for y in outputs]
    return [(y, w) for y, w in pairs if y.dtype.kind == "f"]


def reference(fn: Callable[..., Any], arrays: list[np.ndarray], gradients: bool = True) -> tuple[list[Any], list[Any]]:
    """JAX's outputs, and its derivatives of the weighted sum by each input (None for integers). Compiled at one go."""
    places = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]

    def total(floats: list[Any], rest: list[Any]) -> tuple[Any, list[Any]]:
        filled = list(rest)
        for i, a in zip(places, floats, strict=True):
            filled[i] = a
        outputs = jax.tree_util.tree_leaves(fn(*filled))
        return sum(((y * w).sum() for y, w in weighted(outputs, 0)), jnp.float32(0)), outputs

    def run(floats: list[Any], rest: list[Any]) -> tuple[list[Any], list[Any]]:
        if not gradients or not places:
            return total(floats, rest)[1], []
        (_, outputs), derivatives = jax.value_and_grad(total, has_aux=True)(floats, rest)
        return outputs, derivatives

    compiled = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
    outputs, derivatives = compiled([arrays[i] for i in places], arrays)
    found = dict(zip(places, derivatives, strict=False))
    return outputs, [found.get(i) for i in range(len(arrays))]


def check(fn: Callable[..., Any], *arrays: Any, tolerance: float = 1e-5, gradients: bool = True) -> Graph:
    """Asserts that the graph of `fn` has JAX's values and derivatives, relative to the largest; returns the graph."""
    given = [narrowed(a) for a in arrays]
    graph = traced(fn, *given)
    outputs, derivatives = reference(fn, given, gradients)
    for y, (name, value) in zip(outputs, evaluate(graph, given)[0].items(), strict=True):
        assert value.dtype == narrowed(y).dtype
        close(value, y, tolerance, name)
    if any(d is not None for d in derivatives) and weighted(list(graph.outputs.values()), 0):
        mine = evaluate(with_gradients(graph), given)[0]
        for i, derivative in enumerate(derivatives):
            if derivative is not None:
                made = mine.get(f"d{i}", np.zeros(given[i].shape))
                close(made, derivative, 10 * tolerance, f"derivative by input {i}")
    return graph


def close(value: Any, expected: Any, tolerance: float, what: str = "") -> None:
    value, expected = np.asarray(value), np.asarray(expected)
    assert value.shape == expected.shape, what
    if value.dtype.kind != "f":
        np.testing.assert_array_equal(value, expected, err_msg=what)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 0.0
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-3), err_msg=what)
