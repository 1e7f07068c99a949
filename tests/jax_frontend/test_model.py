"""Models: names of parameters, what trains, types, and bad models."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import converter
import jax_frontend
from converter.ir import FLOAT32, INT32, Graph, evaluate
from converter.passes.idioms import with_idioms
from converter.support.errors import NumericError, UnsupportedError, UsageError

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
SPEC = jax.ShapeDtypeStruct((1, 4), jnp.float32)


def model(apply: Any, params: Any, *inputs: jax.ShapeDtypeStruct, **options: Any) -> jax_frontend.Model:
    return jax_frontend.Model(apply, params, inputs or [SPEC], **options)


def traced(*arguments: Any, **options: Any) -> Graph:
    return with_idioms(jax_frontend.trace(model(*arguments, **options), 2))


def names(graph: Graph) -> list[str]:
    return [p.name for p in graph.parameters.values()]


def trained(graph: Graph) -> list[str]:
    return [p.name for p in graph.parameters.values() if p.trainable]


class Dense(NamedTuple):
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclass
class Weights:
    first: Dense
    rest: list[Any]


def test_names_are_paths_of_the_tree() -> None:
    params = {
        "net": Weights(Dense(np.ones((4, 4)), np.ones(4)), [{"w": np.ones((4, 2))}, (np.ones(2), 3)]),
        "scale": 2.0,
    }

    def apply(p: Any, x: jax.Array) -> jax.Array:
        net = p["net"]
        return (x @ net.first.w + net.first.b) @ net.rest[0]["w"] * p["scale"] + net.rest[1][0] * net.rest[1][1]

    graph = traced(apply, params)
    assert names(graph) == ["net/first/w", "net/first/b", "net/rest/0/w", "net/rest/1/0", "scale"]
    np.testing.assert_allclose(evaluate(graph, [X])[0]["output"], apply(params, X), rtol=1e-5)


def test_a_bare_array_and_many_layers() -> None:
    assert names(traced(lambda w, x: x @ w, np.ones((4, 3)))) == ["params"]
    params = [np.full((4,), float(i)) for i in range(12)]  # "10" sorts before "2", the tree does not
    graph = traced(lambda p, x: sum((i + 1) * (x + w) for i, w in enumerate(p)), params)
    assert names(graph) == [str(i) for i in range(12)]
    expected = sum((i + 1) * (X + w) for i, w in enumerate(params))
    np.testing.assert_allclose(evaluate(graph, [X])[0]["output"], expected, rtol=1e-5)


def test_two_leaves_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two parameters have the path 'a/b'"):
        traced(lambda p, x: x, {"a": {"b": 1.0}, "a/b": 2.0})


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dropout(0.5, deterministic=not train)(nn.Dense(3, name="head")(x))


@pytest.mark.parametrize("freeze", [False, True])
def test_flax_linen(freeze: bool) -> None:
    net = Net()
    variables = net.init(jax.random.key(0), X)
    variables = flax.core.freeze(variables) if freeze else variables
    graph = traced(net.apply, variables)
    assert {n for n in names(graph) if n not in trained(graph)} == {
        "batch_stats/BatchNorm_0/mean",
        "batch_stats/BatchNorm_0/var",
    }
    assert "params/head/kernel" in trained(graph)
    assert {node.origin.layer for node in graph.nodes} >= {"Net/Dense_0", "Net/BatchNorm_0", "Net/head"}
    np.testing.assert_allclose(evaluate(graph, [X])[0]["output"], net.apply(variables, X), rtol=1e-4, atol=1e-6)


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.dropout(self.norm(nnx.relu(self.layers[0](x)))))


def test_flax_nnx() -> None:
    net = NnxNet(nnx.Rngs(0))
    net.eval()
    definition, state = nnx.split(net)
    graph = traced(lambda state, x: nnx.merge(definition, state)(x), state)
    assert set(names(graph)) - set(trained(graph)) == {"norm/mean", "norm/var"}
    assert {"layers/0/kernel", "layers/1/bias", "norm/scale"} <= set(trained(graph))
    np.testing.assert_allclose(evaluate(graph, [X])[0]["output"], net(X), rtol=1e-4, atol=1e-6)


def test_frozen_parameters() -> None:
    params = {"a": {"w": np.ones((4, 4)), "b": np.ones(4)}, "head": {"w": np.ones((4, 2))}}

    def apply(p: Any, x: jax.Array) -> jax.Array:
        return (x @ p["a"]["w"] + p["a"]["b"]) @ p["head"]["w"]

    assert trained(traced(apply, params, frozen=["a"])) == ["head/w"]
    assert trained(traced(apply, params, frozen=["*/w"])) == ["a/b"]
    with pytest.raises(UsageError, match=r"frozen: 'haed/w' is no parameter of apply.* Did you mean 'head/w'"):
        traced(apply, params, frozen=["haed/w"])


def test_integers_are_constants() -> None:
    params = {"w": np.ones((4, 4)), "shift": np.int32(3), "order": np.array([3, 2, 1, 0]), "activation": jax.nn.relu}
    graph = traced(lambda p, x: p["activation"](x[:, p["order"]] @ p["w"] + p["shift"]), params)
    assert names(graph) == ["w"]
    assert 3.0 in [float(c) for c in graph.constants.values() if c.size == 1]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_computed_in_float32(dtype: Any) -> None:
    w = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)), dtype)
    spec = jax.ShapeDtypeStruct((1, 4), dtype)
    graph = traced(lambda p, x: jax.nn.softmax(x @ p["w"] * 2), {"w": w}, spec)
    assert {v.dtype for n in graph.nodes for v in n.outputs} == {FLOAT32} == {v.dtype for v in graph.inputs}
    np.testing.assert_allclose(
        evaluate(graph, [X])[0]["output"], jax.nn.softmax(X @ w.astype(np.float32) * 2), rtol=1e-5
    )


def test_half_precision_is_said_once_by_the_layers_that_cast_and_the_weights() -> None:
    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("narrow"):
            h = (x.astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16)).astype(jnp.float32)
        with jax.named_scope("wide"):
            h = jnp.tanh(h) * 2
        with jax.named_scope("loop"):
            return jax.lax.scan(
                lambda s, _: (s.astype(jnp.float16).astype(jnp.float32) * params["s"], None), h, None, 99
            )[0]

    params = {"w": np.ones((4, 3), np.float32), "s": jnp.ones((), jnp.bfloat16)}
    (note, loop) = converter.build(
        model(apply, params), loss="mse", optimizer=optax.sgd(0.1), batch=2, check=False
    ).notes
    assert (note.subject, note.status) == ("s, narrow", "in float32")
    assert note.why == "bfloat16 in the model: the program computes in float32, which rounds less"
    assert (loop.subject, loop.why.partition(" ")[0]) == ("loop", "float16")


def test_wide_types_are_narrowed() -> None:
    with jax.enable_x64(True):
        specs = [jax.ShapeDtypeStruct((1, 4), np.float64), jax.ShapeDtypeStruct((1,), np.int64)]
        table = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)))
        assert table.dtype == np.float64
        graph = traced(lambda p, x, i: x @ p + p[i + 1], table, *specs)
    assert {v.dtype for n in graph.nodes for v in n.outputs} <= {FLOAT32, INT32, np.dtype(bool)}
    expected = X @ np.asarray(table) + np.asarray(table)[[1, 3]]
    np.testing.assert_allclose(evaluate(graph, [X, np.array([0, 2])])[0]["output"], expected, rtol=1e-5)
    with jax.enable_x64(True), pytest.raises(UnsupportedError, match="integers beyond 32 bits"):
        traced(lambda p, x: x * (x.sum().astype(np.int64) + 2**40), 1.0)


def test_inputs_and_outputs_have_names() -> None:
    graph = traced(lambda p, x: x * p, 2.0)
    assert [v.name for v in graph.inputs] == ["x"]
    assert list(graph.outputs) == ["output"]
    graph = traced(
        lambda p, a, b: {"sum": a + b * p, "difference": a - b}, 2.0, SPEC, jax.ShapeDtypeStruct((9, 4), "float32")
    )
    assert [(v.name, v.shape) for v in graph.inputs] == [("x_0", (2, 4)), ("x_1", (2, 4))]
    assert list(graph.outputs) == ["difference", "sum"]
    graph = traced(lambda p, x: (x * p, [x]), 2.0)
    assert list(graph.outputs) == ["0", "1/0"]
    graph = traced(lambda p, x: [x * p, x], 2.0)
    assert list(graph.outputs) == ["output_0", "output_1"]
    with pytest.raises(UsageError, match="two outputs have the path 'a/b'"):
        traced(lambda p, x: {"a": {"b": x * p}, "a/b": x}, 2.0)


class Callable_:
    def __call__(self, p: Any, x: Any) -> Any:
        return x


def test_a_model_has_a_name() -> None:
    def digits(p: Any, x: Any) -> Any:
        return x

    assert [model(f, {}).name for f in (digits, jax.jit(digits), partial(digits), Net().apply, Callable_())] == [
        "digits", "digits", "digits", "Net", "Callable_",
    ]  # fmt: skip
    assert model(lambda p, x: x, {}).name == "model"


def test_nan_is_refused() -> None:
    params = {"a": np.ones(4), "b": {"w": np.array([1, np.nan, np.nan])}, "c": jnp.asarray([jnp.nan], jnp.bfloat16)}
    with pytest.raises(NumericError) as caught:
        traced(lambda p, x: x, params)
    assert "b/w: 2 of 3 elements" in str(caught.value)
    assert "c: 1 of 1" in str(caught.value)
    assert "a:" not in str(caught.value)


def test_what_the_function_raises_is_the_persons_own() -> None:
    with pytest.raises(TypeError) as caught:
        traced(lambda params: params, {"w": np.ones(4)})
    assert any("apply(params, float32[2, 4])" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError, match="dot_general") as caught:
        traced(lambda p, x: x @ p, np.ones((5, 3)))
    assert any("when Pocketune traced it" in note for note in caught.value.__notes__)
    with pytest.raises(KeyError, match="weights"):
        traced(lambda p, x: p["weights"], {})
    with pytest.raises(TypeError, match="reshape") as caught:
        traced(lambda p, x: x.reshape(4, 4), {})
    assert "If it is written for 4 rows at a time, build with batch=4." in caught.value.__notes__


def test_bad_models() -> None:
    with pytest.raises(UsageError, match=r"jax.ShapeDtypeStruct\(shape, dtype\), not \(1, 4\)"):
        model(lambda p, x: x, {}, (1, 4))
    with pytest.raises(UsageError, match="has no axes"):
        model(lambda p, x: x, {}, jax.ShapeDtypeStruct((), "float32"))
    with pytest.raises(UsageError, match="returns nothing"):
        traced(lambda p, x: None, {})
    with pytest.raises(UnsupportedError, match=r"complex numbers(.|\n)*input x"):
        traced(lambda p, x: x.real, {}, jax.ShapeDtypeStruct((1, 4), "complex64"))
