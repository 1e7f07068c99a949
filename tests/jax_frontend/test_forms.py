"""Named forms: written in any of the usual ways each becomes one semantic op, of equal value and derivative."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from tests.jax_frontend.common import check, op_names

C = 8
X = np.random.default_rng(0).standard_normal((3, 5, C)) * 2
#: Zeros, kinks and far out. At 3 and 6, where nothing of real data lies, hard swish and relu6 may differ in derivative.
CORNERS = X.copy()
CORNERS[0, :2] = np.array([[0.0, 1e-3, -1e-3, 40.0, -40.0, 0.0, 1.0, 1.0], np.zeros(C)])
SCALE = jnp.arange(1.0, C + 1)


def _exp_shifted(x: jax.Array) -> jax.Array:
    return jnp.exp(x - x.max(-1, keepdims=True))


def _squeezed_exp(x: jax.Array) -> jax.Array:
    return jnp.exp(x - jnp.max(x, -1)[..., None])


def _mean(x: jax.Array) -> jax.Array:
    return x.mean(-1, keepdims=True)


def _tanh_gelu(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * jnp.power(x, 3))))


Written = list[Callable[[Any], Any]]

#: Ways of people, jax.nn, flax.linen and flax.nnx. Those of Keras are in KERAS.
FORMS: dict[str, Written] = {
    "Softmax": [
        jax.nn.softmax,
        nn.softmax,
        nnx.softmax,
        lambda x: _exp_shifted(x) / _exp_shifted(x).sum(-1, keepdims=True),
        lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), -1, keepdims=True),
        lambda x: _squeezed_exp(x) / jnp.sum(_squeezed_exp(x), -1)[..., None],
        lambda x: _exp_shifted(x) * (1 / _exp_shifted(x).sum(-1, keepdims=True)),
        lambda x: jnp.exp(x - jnp.max(x)) / jnp.exp(x - jnp.max(x)).sum(-1, keepdims=True),
        lambda x: jnp.exp(jax.nn.log_softmax(x)),
        lambda x: jnp.exp(x - jax.nn.logsumexp(x, -1, keepdims=True)),
    ],
    "LogSoftmax": [
        jax.nn.log_softmax,
        nn.log_softmax,
        nnx.log_softmax,
        lambda x: jnp.log(jax.nn.softmax(x)),
        lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True),
        lambda x: x - jnp.log(jnp.exp(x).sum(-1, keepdims=True)),
        lambda x: (x - x.max(-1, keepdims=True)) - jnp.log(_exp_shifted(x).sum(-1, keepdims=True)),
    ],
    "LogSumExp": [
        lambda x: jax.nn.logsumexp(x, -1, keepdims=True),
        lambda x: jax.nn.logsumexp(x, -1),
        lambda x: jax.scipy.special.logsumexp(x, axis=2),
        lambda x: jnp.log(jnp.exp(x).sum(-1)),
        lambda x: jnp.log(_exp_shifted(x).sum(-1)) + x.max(-1),
        lambda x: jnp.log(_exp_shifted(x).sum(-1, keepdims=True)) + x.max(-1, keepdims=True),
    ],
    "Gelu(approximate=False)": [
        lambda x: jax.nn.gelu(x, approximate=False),
        lambda x: nn.gelu(x, approximate=False),
        lambda x: nnx.gelu(x, approximate=False),
        lambda x: 0.5 * x * (1 + lax.erf(x / np.sqrt(2))),
        lambda x: x * 0.5 * (1.0 + jax.scipy.special.erf(x / jnp.sqrt(2.0))),
        lambda x: x * jax.scipy.stats.norm.cdf(x),
        lambda x: 0.5 * x * jax.scipy.special.erfc(-x / np.sqrt(2.0)),
    ],
    "Gelu(approximate=True)": [
        jax.nn.gelu,
        nn.gelu,
        nnx.gelu,
        _tanh_gelu,
        lambda x: 0.5 * x * (1 + jnp.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))),
        lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * (x + 0.044715 * x**3))),
    ],
    "Silu": [
        jax.nn.silu,
        jax.nn.swish,
        nn.swish,
        nnx.silu,
        lambda x: x * jax.nn.sigmoid(x),
        lambda x: x / (1 + jnp.exp(-x)),
    ],
    "Relu(at_kink=0.0)": [
        jax.nn.relu,
        nn.relu,
        nnx.relu,
        lambda x: jnp.where(x > 0, x, 0),
        lambda x: x * (x > 0),
    ],
    "Relu(at_kink=0.5)": [
        lambda x: jnp.maximum(x, 0),
        lambda x: jnp.maximum(0.0, x),
        lambda x: lax.max(x, jnp.zeros_like(x)),
        lambda x: jnp.clip(x, 0),
    ],
    "Relu6(at_kink=0.0, at_six=0.0)": [jax.nn.relu6, nn.relu6, nnx.relu6],
    "Relu6(at_kink=0.0, at_six=0.5)": [lambda x: jnp.minimum(jax.nn.relu(x), 6)],
    "Relu6(at_kink=0.5, at_six=0.5)": [lambda x: jnp.clip(x, 0, 6), lambda x: jnp.minimum(jnp.maximum(x, 0.0), 6.0)],
    "HardSwish(at_kink=0.0)": [
        jax.nn.hard_swish,
        jax.nn.hard_silu,
        nn.hard_silu,
        nnx.hard_swish,
        lambda x: x * jax.nn.relu6(x + 3) / 6,
        lambda x: x * jax.nn.hard_sigmoid(x),
    ],
    "HardSwish(at_kink=0.5)": [lambda x: x * jnp.clip(x + 3, 0, 6) / 6, lambda x: x * jnp.clip(x / 6 + 0.5, 0, 1)],
    "LeakyRelu(alpha=0.1)": [
        lambda x: jax.nn.leaky_relu(x, 0.1),
        lambda x: nn.leaky_relu(x, 0.1),
        lambda x: jnp.where(x >= 0, x, 0.1 * x),
        lambda x: jnp.where(x > 0, x, 0.1 * x),  # flat at 0
    ],
    "Elu": [jax.nn.elu, nn.elu, nnx.elu, lambda x: jnp.where(x > 0, x, jnp.expm1(x))],
    "LayerNorm(epsilon=1e-05)": [
        lambda x: nn.LayerNorm(1e-5, use_bias=False, use_scale=False).apply({}, x),
        lambda x: nn.LayerNorm(1e-5, use_bias=False, use_scale=False, use_fast_variance=False).apply({}, x),
        nnx.LayerNorm(C, epsilon=1e-5, use_bias=False, use_scale=False, rngs=nnx.Rngs(0)),
        lambda x: jax.nn.standardize(x, axis=-1, epsilon=1e-5),
        lambda x: (x - _mean(x)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
        lambda x: (x - _mean(x)) * lax.rsqrt(_mean((x - _mean(x)) ** 2) + 1e-5),
        lambda x: (x - _mean(x)) * (_mean((x - _mean(x)) ** 2) + 1e-5) ** -0.5,
        lambda x: (x - _mean(x)) * (1 / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)),
        lambda x: (x - x.mean(-1)[..., None]) / jnp.sqrt(x.var(-1)[..., None] + 1e-5),
        lambda x: (x - _mean(x)) / jnp.sqrt(jnp.mean(x * x, -1)[..., None] - jnp.square(_mean(x)) + 1e-5),
        lambda x: (x - x.sum(-1, keepdims=True) / C) / (jnp.sum((x - _mean(x)) ** 2, -1)[..., None] / C + 1e-5) ** 0.5,
    ],
    "RMSNorm(epsilon=1e-05)": [
        lambda x: nn.RMSNorm(1e-5, use_scale=False).apply({}, x),
        nnx.RMSNorm(C, epsilon=1e-5, use_scale=False, rngs=nnx.Rngs(0)),
        lambda x: x / jnp.sqrt(_mean(x**2) + 1e-5),
        lambda x: x * lax.rsqrt(_mean(jnp.square(x)) + 1e-5),
        lambda x: x * (_mean(x * x) + 1e-5) ** -0.5,
        lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True) / C + 1e-5),
    ],
}  # fmt: skip
#: The same with a learned scale and shift around, which stay apart.
SCALED: dict[str, Written] = {
    "LayerNorm(epsilon=1e-05)": [
        lambda x: (x - _mean(x)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * SCALE + 1.0,
        lambda x: SCALE * (x - _mean(x)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) + SCALE,
        lambda x: (x - _mean(x)) * (lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * SCALE) - SCALE,
    ],
    "RMSNorm(epsilon=1e-05)": [
        lambda x: x * lax.rsqrt(_mean(jnp.square(x)) + 1e-5) * SCALE,
        lambda x: (x * SCALE) / jnp.sqrt(_mean(jnp.square(x)) + 1e-5),
    ],
}
INDICES = np.random.default_rng(1).integers(0, 6, (3, 4))
ONE_HOT: Written = [
    lambda i: jax.nn.one_hot(i, 6),
    lambda i: nnx.one_hot(i, 6),
    lambda i: (i[..., None] == jnp.arange(6)).astype(jnp.float32),
    lambda i: jnp.where(i[..., None] == jnp.arange(6), 1.0, 0.0),
    lambda i: jnp.eye(6)[i],
    lambda i: jnp.take(jnp.eye(6), i, axis=0),
]


def cases(table: dict[str, Written]) -> list[Any]:
    return [pytest.param(op, way, id=f"{op}-{i}") for op, ways in table.items() for i, way in enumerate(ways)]


@pytest.mark.parametrize(("op", "way"), cases(FORMS))
def test_each_way_is_one_op(op: str, way: Callable) -> None:
    graph = check(way, X if "Norm" in op else CORNERS)
    assert [str(node.op) for node in graph.nodes if node.op.name != "Reshape"] == [op]


@pytest.mark.parametrize(("op", "way"), cases(SCALED))
def test_scale_and_shift_stay_apart(op: str, way: Callable) -> None:
    graph = check(way, X)
    assert [str(node.op) for node in graph.nodes if node.op.name not in ("Mul", "Add", "Sub")] == [op]
    assert len(graph.nodes) <= 3


@pytest.mark.parametrize("way", ONE_HOT)
def test_one_hot(way: Callable) -> None:
    assert "OneHot" in op_names(check(way, INDICES))


def test_cross_entropy() -> None:
    import optax

    logits, labels = X[:, 0], INDICES[:, 0]
    rows = np.abs(X[:, 1])
    for fn, targets in (
        (optax.softmax_cross_entropy_with_integer_labels, labels),
        (optax.softmax_cross_entropy, rows),
        (lambda z, t: -(t * jax.nn.log_softmax(z)).sum(-1), rows),
        (lambda z, y: -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], -1)[:, 0], labels),
        (lambda z, y: -jax.nn.log_softmax(z)[jnp.arange(3), y], labels),
        (lambda z, y: -(jax.nn.log_softmax(z) * jax.nn.one_hot(y - 1, C)).sum(-1), labels),  # -1 is no class
        (lambda z, y: jax.nn.logsumexp(z, -1) - (z * jax.nn.one_hot(y - 1, C)).sum(-1), labels),
    ):
        form = "LabelCrossEntropy" if targets is labels else "SoftmaxCrossEntropy"
        assert form in op_names(check(fn, logits, targets))


def keras_forms() -> list[tuple[str, Callable]]:
    import keras

    k = keras.ops
    layer_norm = keras.layers.LayerNormalization(epsilon=1e-5, center=False, scale=False)
    layer_norm.build(X.shape)
    return [
        ("Softmax", k.softmax),
        ("Softmax", keras.activations.softmax),
        ("LogSoftmax", k.log_softmax),
        ("LogSumExp", lambda x: k.logsumexp(x, axis=-1)),
        ("Gelu(approximate=False)", lambda x: k.gelu(x, approximate=False)),
        ("Gelu(approximate=True)", lambda x: keras.activations.gelu(x, approximate=True)),
        ("Silu", keras.activations.silu),
        ("Relu(at_kink=0.0)", keras.activations.relu),
        ("Relu6(at_kink=0.0, at_six=0.0)", keras.activations.relu6),
        ("HardSwish(at_kink=0.0)", keras.activations.hard_silu),
        ("LayerNorm(epsilon=1e-05)", layer_norm),
        ("RMSNorm(epsilon=1e-05)", lambda x: k.rms_normalization(x, epsilon=1e-5)),
    ]


def test_keras_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # read when Keras is first imported
    import keras

    if keras.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend in this process")
    for op, way in keras_forms():
        graph = check(way, X, gradients=False)
        assert [str(n.op) for n in graph.nodes if n.op.name not in ("Reshape", "Mul")] == [op]
