"""Attention by scaled dot products."""

from __future__ import annotations

from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converter.frontends.torch.registry import Call, Rules

rule = Rules()


@rule("scaled_dot_product_attention")
def attention(
    call: Call,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout:
        call.findings.note(
            call.layer,
            "left out",
            f"dropout of attention weights (p={dropout:g}): the program attends as in inference",
        )
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        k, v = (jnp.repeat(t, q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    factor = 1 / sqrt(q.shape[-1]) if scale is None else scale
    scores = jnp.matmul(q * q.dtype.type(factor), jnp.swapaxes(k, -1, -2))
    if is_causal:
        mask = np.tri(q.shape[-2], k.shape[-2], dtype=bool)
    if mask is None:
        return jnp.matmul(jax.nn.softmax(scores, -1), v)
    weights, seen = _masked(scores, mask)
    return jnp.matmul(weights if seen is None else jnp.where(seen, weights, 0.0), v)


def _masked(scores: Any, mask: Any) -> tuple[Any, Any]:
    """Softmax under a mask, and which of the rows see any place; None where all do, by what is known."""
    known = isinstance(mask, np.ndarray)
    least = np.float32(np.finfo(np.float32).min) / 2
    if mask.dtype == np.bool_:
        seen = mask.any(-1, keepdims=True) if known else jnp.any(mask, -1, keepdims=True)
        scores = scores + np.where(mask, np.float32(0), least) if known else jnp.where(mask, scores, least)
    else:
        library: Any = np if known else jnp
        seen = library.max(mask, -1, keepdims=True) > -np.inf
        scores = scores + library.maximum(mask, least)
    if known and seen.all():
        seen = None
    return jax.nn.softmax(scores, -1), seen
