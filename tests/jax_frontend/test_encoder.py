"""A BERT-like encoder in plain JAX: its forms are raised, its gradients are JAX's, its step holds no stray form."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_frontend
from converter.backend.targets import target
from converter.driver.features.optimizer import with_optimizer
from converter.frontends.source import Source
from converter.ir import Builder, evaluate, ops
from converter.passes import absorb_layout
from converter.passes.autodiff import differentiate
from converter.passes.canonical import canonicalize
from converter.passes.idioms import with_idioms
from converter.training.losses import named_loss
from converter.training.schemes import update_scheme
from converter.training.step import whole_step

BATCH, LENGTH, WIDTH, HEADS, LAYERS, WORDS = 2, 6, 8, 2, 2, 11
RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 3).astype(np.float32)


def norm_weights() -> dict[str, np.ndarray]:
    return {"scale": 1 + weights(WIDTH), "bias": weights(WIDTH)}


PARAMS = {
    "embedding": {"words": weights(WORDS, WIDTH), "places": weights(LENGTH, WIDTH)},
    "layers": [
        {
            "attention": {name: weights(WIDTH, HEADS, WIDTH // HEADS) for name in ("q", "k", "v")}
            | {"out": weights(HEADS, WIDTH // HEADS, WIDTH)},
            "norm_1": norm_weights(),
            "mlp": {"w1": weights(WIDTH, 16), "b1": weights(16), "w2": weights(16, WIDTH), "b2": weights(WIDTH)},
            "norm_2": norm_weights(),
        }
        for _ in range(LAYERS)
    ],
    "head": {"w": weights(WIDTH, 3), "b": weights(3)},
}  # fmt: skip


def layer_norm(p: Any, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def attention(p: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dhk->bhtk", x, p[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bhtk,bhsk->bhts", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(mask[:, None, None, :], scores, -1e9)
    return jnp.einsum("bhts,bhsk,hkd->btd", jax.nn.softmax(scores), v, p["out"])


def encoder(p: Any, tokens: jax.Array) -> jax.Array:
    x = p["embedding"]["words"][tokens] + p["embedding"]["places"]
    for layer in p["layers"]:
        x = layer_norm(layer["norm_1"], x + attention(layer["attention"], x, tokens > 0))
        mlp = layer["mlp"]
        hidden = jax.nn.gelu(x @ mlp["w1"] + mlp["b1"], approximate=False)
        x = layer_norm(layer["norm_2"], x + hidden @ mlp["w2"] + mlp["b2"])
    return x[:, 0] @ p["head"]["w"] + p["head"]["b"]


def model() -> jax_frontend.Model:
    return jax_frontend.Model(encoder, PARAMS, [jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)])


def test_forms_and_gradients() -> None:
    graph = with_idioms(jax_frontend.trace(model(), BATCH))
    count = Counter(node.op.name for node in graph.nodes)
    assert (count["LayerNorm"], count["Softmax"], count["Gelu"]) == (2 * LAYERS, LAYERS, LAYERS)
    assert not {"LeakyRelu", "Exp", "Erf", "Rsqrt", "Mean", "BroadcastTo", "Dilate"} & set(count)
    tokens = RNG.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32)
    expected = encoder(PARAMS, tokens)
    np.testing.assert_allclose(evaluate(graph, [tokens])[0]["output"], expected, rtol=1e-4, atol=1e-5)
    b = Builder(graph.copy())
    total = b(ops.Sum((0, 1)), b(ops.Mul(), *[graph.outputs["output"]] * 2))
    backward, found = differentiate(b.graph, total, graph.parameters)
    backward.outputs = {graph.parameters[p].name: value for p, value in found.items()}
    mine = evaluate(backward, [tokens])[0]
    derivatives = jax.jit(jax.grad(lambda p: (encoder(p, tokens) ** 2).sum()))(PARAMS)
    theirs = jax_frontend.model.named_leaves(derivatives)
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-3, atol=1e-4 * max(1, np.abs(value).max()), err_msg=name)


def test_the_training_step_with_adamw() -> None:
    source = Source(with_idioms(jax_frontend.trace(model(), BATCH)), "encoder")
    forward = canonicalize(source.graph)
    rows = update_scheme("full").resolve(absorb_layout(forward))
    selected, rule = with_optimizer(forward, rows, optax.adamw(1.0), target("litert-2"))
    step = whole_step(selected, named_loss("sparse_categorical_crossentropy"), rule)
    names = Counter(node.op.name for node in step.nodes)
    assert not {"LeakyRelu", "Relu", "Elu", "HardSwish", "Silu"} & set(names)
    assert len(step.updates) == 3 * len(rows) + 1  # with two moments each, and a counter
