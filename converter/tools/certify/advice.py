"""Advice on what to change where an engine refuses or miscomputes an operator."""

from __future__ import annotations

from collections.abc import Sequence

#: What helps in any case.
REBUILD = "build for the engine (--target gpu, web, hexagon or tflm), which takes forms that it computes rightly"
#: Where a float16 engine rounds the state.
SPLIT = "build with --state split: gradients on the engine, the update in float32 on the CPU"
#: Where numbers are too large.
RANGE = "float16 ends at 65504: scale or normalise what the layer is given, or keep to an engine of float32"
_BY_KIND = {
    "VAR_HANDLE": "build with --state stateless",
    "READ_VARIABLE": "build with --state stateless",
    "ASSIGN_VARIABLE": "build with --state stateless",
    "CALL_ONCE": "build with --state stateless",
    "WHILE": "unroll the loop in the model: no accelerator runs loops",
}


def advice(kind: str, before: Sequence[str] = ()) -> str:
    """Return what to change.

    Args:
        kind: the operator.
        before: those without which it is right.
    """
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    if before:
        return f"{REBUILD}; what is right alone and wrong behind {before[-1]} is fused by the engine"
    return REBUILD
