"""Named losses that are written in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax


def ctc(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Connectionist temporal classification: logits [B, T, classes], labels [B, L] filled up with 0, the blank."""
    return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, (labels == 0).astype(jnp.float32))
