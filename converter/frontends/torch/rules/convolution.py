"""Convolutions, in PyTorch's layout: channels before the spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from converter.frontends.torch.registry import Call, Rules

rule = Rules()


def _numbers(spatial: int) -> tuple[str, str, str]:
    axes = "DHW"[-spatial:]
    return (f"NC{axes}", f"OI{axes}", f"NC{axes}")


def _spread(values: Any, spatial: int) -> list[int]:
    given = list(values) if isinstance(values, Sequence) else [values]
    return [int(v) for v in given] * (spatial if len(given) == 1 else 1)


def _biased(y: Any, bias: Any, spatial: int) -> Any:
    return y if bias is None else y + bias.reshape(1, -1, *[1] * spatial)


@rule("conv1d", "conv2d", "conv3d")
def conv(
    call: Call, x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    spatial = w.ndim - 2
    batched = x if x.ndim == w.ndim else x[None]
    reach = [d * (k - 1) for d, k in zip(_spread(dilation, spatial), w.shape[2:], strict=True)]
    if padding == "same":
        pads = [(r // 2, r - r // 2) for r in reach]
    elif padding == "valid":
        pads = [(0, 0)] * spatial
    else:
        pads = [(p, p) for p in _spread(padding, spatial)]
    y = lax.conv_general_dilated(
        batched,
        w,
        _spread(stride, spatial),
        pads,
        rhs_dilation=_spread(dilation, spatial),
        dimension_numbers=_numbers(spatial),
        feature_group_count=groups,
    )
    y = _biased(y, bias, spatial)
    return y if x.ndim == w.ndim else y[0]


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    call: Call,
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    spatial = w.ndim - 2
    batched = x if x.ndim == w.ndim else x[None]
    strides, pads, more, spread = (_spread(v, spatial) for v in (stride, padding, output_padding, dilation))
    reach = [d * (k - 1) for d, k in zip(spread, w.shape[2:], strict=True)]
    if groups > 1:  # [I, O / groups, ...] -> [I / groups, O, ...]
        parts = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        w = jnp.moveaxis(parts, 0, 1).reshape(w.shape[0] // groups, groups * w.shape[1], *w.shape[2:])
    axes = "DHW"[-spatial:]
    y = lax.conv_general_dilated(
        batched,
        jnp.flip(w, tuple(range(2, w.ndim))),
        [1] * spatial,
        [(r - p, r - p + o) for r, p, o in zip(reach, pads, more, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=spread,
        dimension_numbers=(f"NC{axes}", f"IO{axes}", f"NC{axes}"),
        feature_group_count=groups,
    )
    y = _biased(y, bias, spatial)
    return y if x.ndim == w.ndim else y[0]


@rule("convolution", "_convolution")
def convolution(
    call: Call,
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    if transposed:
        return conv_transpose(call, x, w, bias, stride, padding, output_padding, groups, dilation)
    return conv(call, x, w, bias, stride, padding, dilation, groups)
