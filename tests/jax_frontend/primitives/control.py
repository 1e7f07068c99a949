"""Control flow and losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.jax_frontend.primitives.table import case, f, i

# Control.
case("cond", lambda c, x: lax.cond(c, lambda v: v * 2, lambda v: jnp.sin(v), x), np.bool_(True), f(4))
case("cond on a float", lambda x: lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: -v, x), f(4))
case(
    "switch", lambda n, x: lax.switch(n, [lambda v: v * 2, lambda v: jnp.sin(v), lambda v: v - 1], x), np.int32(1), f(4)
)
case("switch out of range", lambda n, x: lax.switch(n, [lambda v: v * 2, lambda v: v - 1], x), np.int32(7), f(4))
case("scan", lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), jnp.zeros(3), x), f(6, 3))
case("scan reversed", lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), jnp.zeros(3), x, reverse=True), f(6, 3))
case("scan of integers", lambda x: lax.scan(lambda c, r: (c + r, c), jnp.int32(0), x), i(6))
case("fori_loop", lambda x: lax.fori_loop(0, 5, lambda k, v: v * 0.9 + k, x), f(3))
case("fori_loop indexing", lambda x: lax.fori_loop(0, 4, lambda k, v: v.at[k].add(1.0 * k), x), f(4))
case("map", lambda x: lax.map(lambda r: r @ r, x), f(4, 3))
case(
    "while, bounded",
    lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))[1],
    f(3),
    gradient=False,
)
case("custom_vjp and stop_gradient", lambda x: lax.stop_gradient(x) * x, f(3))
case("checkpoint", lambda x: jax.checkpoint(lambda v: jnp.sin(v) * v)(x), f(3))
case("grad in the function", lambda x: jax.grad(lambda v: (jnp.tanh(v) ** 2).sum())(x), f(3))
case("jvp in the function", lambda x, t: jax.jvp(jnp.tanh, (x,), (t,))[1], f(3), f(3))
case("vmap", lambda x, w: jax.vmap(lambda r: jnp.tanh(r @ w))(x), f(3, 4), f(4, 2))

# Losses.
LOGITS, LABELS, TARGETS = f(4, 5) * 3, i(4, low=0, high=5), jax.nn.softmax(f(4, 5))
case("cross entropy", lambda z, y: -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1).mean(), LOGITS, LABELS)
case("soft cross entropy", lambda z, t: -(t * jax.nn.log_softmax(z)).sum(-1), LOGITS, np.asarray(TARGETS))
case(
    "binary cross entropy",
    lambda z, t: jnp.maximum(z, 0) - z * t + jnp.log1p(jnp.exp(-jnp.abs(z))),
    LOGITS,
    np.asarray(TARGETS),
)
case(
    "huber",
    lambda x, y: jnp.where(jnp.abs(x - y) < 1, 0.5 * (x - y) ** 2, jnp.abs(x - y) - 0.5).mean(),
    f(4, 5),
    f(4, 5),
)
case("log cosh", lambda x, y: (jnp.logaddexp(x - y, y - x) - jnp.log(2.0)).sum(), f(4, 5), f(4, 5))
case(
    "cosine",
    lambda x, y: (x * y).sum(-1) / (jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)),
    f(4, 5),
    f(4, 5),
)
case("hinge", lambda x, y: jnp.maximum(0, 1 - x * jnp.sign(y)).mean(-1), f(4, 5), f(4, 5))
case(
    "triplet",
    lambda a, p, n: jnp.maximum(((a - p) ** 2).sum(-1) - ((a - n) ** 2).sum(-1) + 1, 0),
    f(4, 5),
    f(4, 5),
    f(4, 5),
)
case("contrastive", lambda x, y: -jnp.diag(jax.nn.log_softmax(x @ y.T)).mean(), f(4, 5), f(4, 5))
case("focal", lambda z, t: -t * (1 - jax.nn.softmax(z)) ** 2 * jax.nn.log_softmax(z), LOGITS, np.asarray(TARGETS))
case("kl", lambda z, t: (t * (jnp.log(t) - jax.nn.log_softmax(z))).sum(-1), LOGITS, np.asarray(TARGETS))
case(
    "label smoothing",
    lambda z, y: -((jax.nn.one_hot(y, 5) * 0.9 + 0.02) * jax.nn.log_softmax(z)).sum(-1).mean(),
    LOGITS,
    LABELS,
)
case("accuracy", lambda z, y: (z.argmax(-1) == y).mean(), LOGITS, LABELS)
case("poisson nll", lambda x, y: jnp.exp(x) - y * x + jax.scipy.special.gammaln(y + 1), f(4, 5), np.abs(f(4, 5)))
