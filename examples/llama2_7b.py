"""LLaMA 2 of 7 billion parameters as shapes, all that a plan needs: `pocketune schemes llama2-7b`."""

from __future__ import annotations

import pocketune
from examples import llama


def build(length: int = 512) -> pocketune.Model:
    """int32 ids [B, length] -> logits [B, length, 32000]; the parameters are `jax.ShapeDtypeStruct`.

    Args:
        length: tokens of a sequence.
    """
    return llama.build(
        layers=32, width=4096, heads=32, key_heads=32, length=length, vocabulary=32_000, hidden=11_008, seed=None
    )
