"""Functions at their kinks: ties, bounds, zeros and what lies behind a `where`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from jax import lax
from jax.scipy import special

from tests.jax_frontend.primitives.table import case

#: Kinks of activations, losses and bounds.
POINTS = np.array([-6, -3, -2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 3, 6])
#: Rows with ties, of zeros and of one number.
ROWS = np.array([[1, 1, 0], [0, 0, 0], [2, 1, 2], [-1, -1, -1], [0, 1, 0], [1, 0, 0]], np.float32)
#: All pairs of a few numbers.
LEFT, RIGHT = np.array([[a, c] for a in (-1, 0, 1, 2, -0.0) for c in (-1, 0, 1, 2, -0.0)]).T
LABELS = np.arange(6) % 3
ONE_HOT = np.eye(3, dtype=np.float32)[LABELS]
WEIGHTS = np.array([1, 2, 3], np.float32)


def _guarded(test: Callable, of: Callable) -> Callable:
    """A function where the test holds and 0 elsewhere, with the argument replaced there too ("double where")."""
    return lambda x: jnp.where(test(x), of(jnp.where(test(x), x, 1.0)), 0.0)


def _named(*functions: Callable) -> dict[str, Callable]:
    return {f.__name__: f for f in functions}


def _soft_rows(x: Any) -> Any:
    return jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf))


ELEMENTWISE: dict[str, Callable] = {
    **_named(
        jnp.sinc,
        jnp.abs,
        jnp.sign,
        jax.nn.relu,
        jax.nn.relu6,
        jax.nn.leaky_relu,
        jax.nn.elu,
        jax.nn.selu,
        jax.nn.celu,
        jax.nn.hard_sigmoid,
        jax.nn.hard_silu,
        jax.nn.hard_tanh,
        jax.nn.softplus,
        jax.nn.log_sigmoid,
        jax.nn.silu,
        jax.nn.gelu,
        jax.nn.mish,
        jax.nn.squareplus,
        jax.nn.sparse_plus,
        jax.nn.sparse_sigmoid,
        jax.nn.soft_sign,
        jnp.cbrt,
        jnp.round,
        jnp.floor,
        jnp.ceil,
        jnp.trunc,
        optax.log_cosh,
        optax.huber_loss,
    ),
    "maximum with 0": lambda x: jnp.maximum(x, 0),
    "minimum with 0": lambda x: jnp.minimum(x, 0),
    "maximum with its negative": lambda x: jnp.maximum(x, -x),
    "maximum with a tenth": lambda x: jnp.maximum(x, 0.1 * x),
    "fmax": lambda x: jnp.fmax(x, 0.0),
    "where above 0": lambda x: jnp.where(x > 0, x, 0),
    "where from 0 on": lambda x: jnp.where(x >= 0, x, 0),
    "clip": lambda x: jnp.clip(x, -1, 1),
    "clip below": lambda x: jnp.clip(x, 0.5),
    "clip above": lambda x: jnp.clip(x, max=1.0),
    "lax clamp": lambda x: lax.clamp(-1.0, x, 2.0),
    "clip to 6": lambda x: jnp.clip(x, 0, 6),
    "relu cut at 6": lambda x: jnp.minimum(jax.nn.relu(x), 6.0),
    "hard swish by clip": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    "hard sigmoid by clip": lambda x: jnp.clip(x / 6 + 0.5, 0, 1),
    "square": lambda x: x**2,
    "power 2": lambda x: x**2.0,
    "power 3": lambda x: x**3,
    "power 1": lambda x: x**1.0,
    "power 9": lambda x: x**9.0,
    "float_power": lambda x: jnp.float_power(x, 2),
    "power array": lambda x: jnp.power(x, np.array([2.0, 3.0, 1.0, 0.0] * 3, np.float32)),
    "times abs": lambda x: x * jnp.abs(x),
    "root of abs": lambda x: jnp.sqrt(jnp.abs(x)),
    "root of square": lambda x: jnp.sqrt(x * x),
    "guarded root": _guarded(lambda x: x > 0, jnp.sqrt),
    "unguarded root": lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0),
    "guarded quotient": _guarded(lambda x: x != 0, lambda x: 1 / x),
    "unguarded quotient": lambda x: jnp.where(x != 0, 1 / x, 0.0),
    "guarded logarithm": _guarded(lambda x: x > 0, jnp.log),
    "unguarded logarithm": lambda x: jnp.where(x > 0, jnp.log(x), 0.0),
    "remainder of 1": lambda x: x % 1.0,
    "fmod": lambda x: jnp.fmod(x, 2.0),
    "heaviside": lambda x: jnp.heaviside(x, 0.5),
    "huber by where": lambda e: jnp.where(jnp.abs(e) <= 1, 0.5 * e * e, jnp.abs(e) - 0.5),
    "huber of 0.5": lambda x: optax.huber_loss(x, delta=0.5),
    "hinge": lambda x: jnp.maximum(0, 1 - x),
    "squared hinge": lambda x: jnp.square(jnp.maximum(0, 1 - x)),
    "optax hinge": lambda x: optax.hinge_loss(x, np.array([1.0, -1.0] * 6, np.float32)),
    "soft threshold": lambda x: jnp.sign(x) * jnp.maximum(jnp.abs(x) - 1, 0),
    "entr": lambda x: special.entr(jnp.abs(x)),
    "softplus by parts": lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))),
    "softplus by relu": lambda x: jax.nn.relu(x) + jnp.log1p(jnp.exp(-jnp.abs(x))),
    "piecewise": lambda x: jnp.piecewise(x, [x < 0, x >= 1], [lambda x: -x, lambda x: x * x, lambda x: x]),
    **{
        f"keras {f.__name__}": f
        for f in (
            keras.activations.relu,
            keras.activations.leaky_relu,
            keras.activations.hard_sigmoid,
            keras.activations.hard_silu,
            keras.activations.hard_tanh,
            keras.activations.hard_shrink,
            keras.activations.soft_shrink,
            keras.activations.celu,
        )
    },
    "keras relu of three parts": lambda x: keras.activations.relu(x, negative_slope=0.1, max_value=2.0, threshold=0.5),
}

PAIRS: dict[str, Callable] = {
    **_named(
        jnp.maximum,
        jnp.minimum,
        jnp.arctan2,
        jnp.hypot,
        jnp.logaddexp,
        jnp.fmax,
        jnp.fmin,
        jnp.copysign,
        jnp.divide,
        optax.sigmoid_binary_cross_entropy,
    ),
    "power of sizes": lambda x, y: jnp.power(jnp.abs(x), jnp.abs(y)),
    "xlogy": lambda x, y: special.xlogy(x, jnp.abs(y)),
    "xlog1py": lambda x, y: special.xlog1py(x, jnp.abs(y)),
    "rel_entr": lambda x, y: special.rel_entr(jnp.abs(x), jnp.abs(y)),
    "kl_div": lambda x, y: special.kl_div(jnp.abs(x), jnp.abs(y)),
    "clip by a tensor": lambda x, y: jnp.clip(x, -1, y),
    "guarded quotient": lambda x, y: jnp.where(y == 0, 0.0, x / jnp.where(y == 0, 1.0, y)),
    "unguarded quotient": lambda x, y: jnp.where(y == 0, 0.0, x / y),
    "larger by where": lambda x, y: jnp.where(x > y, x, y),
    "distance": lambda x, y: jnp.sqrt(x * x + y * y),
    "margin": lambda x, y: jnp.maximum(0, x - y + 1),
    "power 1.5 of a difference": lambda x, y: jnp.abs(x - y) ** 1.5,
    "huber of two": lambda x, y: optax.huber_loss(x, y),
    "cross entropy by parts": lambda z, y: jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))),
    "cross entropy by relu": lambda z, y: jax.nn.relu(z) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))),
    "cross entropy by softplus": lambda z, y: jax.nn.softplus(z) - z * y,
    "cross entropy by log sigmoid": lambda z, y: -y * jax.nn.log_sigmoid(z) - (1 - y) * jax.nn.log_sigmoid(-z),
    "cross entropy by logaddexp": lambda z, y: jnp.logaddexp(z, 0.0) - z * y,
    "cross entropy of clipped": lambda z, y: -y * jnp.log(jnp.clip(jax.nn.sigmoid(z), 1e-7, 1 - 1e-7)),
    "keras cross entropy": lambda z, y: keras.ops.binary_crossentropy(y, z, from_logits=True),
}
OF_ROWS: dict[str, Callable] = {
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "max of all": lambda x: x.max(),
    "max of columns": lambda x: x.max(0),
    "argmax": lambda x: jnp.argmax(x, -1) * x.sum(-1),
    "argmin": lambda x: jnp.argmin(x, -1) * x.sum(-1),
    "sort": lambda x: jnp.sort(x, -1) * WEIGHTS,
    "sort down": lambda x: jnp.sort(x, -1, descending=True) * WEIGHTS,
    "top_k": lambda x: lax.top_k(x, 2)[0] * WEIGHTS[:2],
    "median": lambda x: jnp.median(x, -1),
    "quantile": lambda x: jnp.quantile(x, 0.3, axis=-1),
    "cummax": lambda x: lax.cummax(x, 1) * WEIGHTS,
    "cummin": lambda x: lax.cummin(x, 1) * WEIGHTS,
    "cumprod": lambda x: jnp.cumprod(x, -1),
    "prod": lambda x: x.prod(-1),
    "prod of all": lambda x: x.prod(),
    "ptp": lambda x: jnp.ptp(x, -1),
    "max where": lambda x: jnp.max(x, -1, where=x < 2, initial=-9.0),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "logsumexp where": lambda x: jax.nn.logsumexp(x, -1, where=x > 0),
    "softmax where": lambda x: jax.nn.softmax(x, where=x > 0) * WEIGHTS,
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 1),
    "norm": lambda x: jnp.linalg.norm(x, axis=-1),
    "norm 1": lambda x: jnp.linalg.norm(x, 1, axis=-1),
    "norm inf": lambda x: jnp.linalg.norm(x, jnp.inf, axis=-1),
    "norm 3": lambda x: jnp.linalg.norm(x, 3, axis=-1),
    "safe norm": lambda x: optax.safe_norm(x, 1e-6, axis=-1),
    "l2 normalize": lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
    "l2 normalize from below": lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6),
    "l2 normalize by rsqrt": lambda x: x * lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), 1e-12)),
    "rsqrt": lambda x: lax.rsqrt((x * x).sum(-1)),
    "keras normalize": keras.ops.normalize,
    "std": lambda x: x.std(-1),
    "var": lambda x: x.var(-1),
    "std of columns": lambda x: x.std(0),
    "layer norm": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3) * WEIGHTS,
    "layer norm without epsilon": lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
    "rms norm": lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * WEIGHTS,
    "cosine": lambda x: optax.cosine_similarity(x, jnp.ones((6, 3)), epsilon=1e-6),
    "keras cosine": lambda x: keras.losses.cosine_similarity(jnp.ones((6, 3)), x),
    "max pool": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"),
    "min pool": lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 1), "VALID"),
    "padded max pool": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME"),
    "keras max pool": lambda x: keras.ops.max_pool(x[None, :, :, None], 2, 2),
    "largest one by one": lambda x: jnp.maximum(jnp.maximum(x[:, 0], x[:, 1]), x[:, 2]),
    "cross entropy of labels": lambda x: optax.softmax_cross_entropy_with_integer_labels(x, LABELS),
    "cross entropy": lambda x: optax.softmax_cross_entropy(x, ONE_HOT),
    "focal": lambda x: optax.sigmoid_focal_loss(x, ONE_HOT, alpha=0.25),
    "kl": lambda x: optax.kl_divergence(jax.nn.log_softmax(x), ONE_HOT),
    "class hinge": lambda x: optax.losses.multiclass_hinge_loss(x, LABELS),
    "perceptron": lambda x: optax.losses.perceptron_loss(x, jnp.ones((6, 3))),
    "triplet": lambda x: optax.losses.triplet_margin_loss(x, 0 * x, 0 * x),
    "distances": lambda x: jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-8),
    "guarded distances": lambda x: _guarded(lambda s: s > 0, jnp.sqrt)(((x[:, None] - x[None]) ** 2).sum(-1)),
    "softmax of masked": lambda x: _soft_rows(x) * WEIGHTS,
    "logsumexp of masked": lambda x: jax.nn.logsumexp(jnp.where(x > 0, x, -jnp.inf), -1),
    "softmax of masked rows": lambda x: jnp.where((x > 0).any(-1, keepdims=True), _soft_rows(x), 0.0) * WEIGHTS,
    "cross entropy of masked": lambda x: optax.softmax_cross_entropy_with_integer_labels(
        jnp.where(x >= 1, x, -jnp.inf)[:1], LABELS[:1]
    ),
    "safe cross entropy of masked": lambda x: optax.safe_softmax_cross_entropy(
        jnp.where(x >= 1, x, -jnp.inf)[:1], ONE_HOT[:1]
    ),
}

for _name, _function in ELEMENTWISE.items():
    case(f"{_name} at kinks", _function, POINTS)
for _name, _function in PAIRS.items():
    case(f"{_name} at kinks of two", _function, LEFT, RIGHT)
for _name, _function in OF_ROWS.items():
    case(f"{_name} of rows with ties", _function, ROWS)
