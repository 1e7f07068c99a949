"""Convolutions and windows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.jax_frontend.primitives.table import case, f, i


# Convolutions and windows.
def conv(name: str, x: tuple, w: tuple, *, spec: Any = None, transposed: bool = False, **how: Any) -> None:
    rank = len(x) - 2
    letters = "DHW"[-rank:]
    spec = spec or (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    how = {"window_strides": (1,) * rank, "padding": "SAME", **how}
    case(
        f"conv {name}",
        lambda a, k: lax.conv_general_dilated(a, k, dimension_numbers=spec, **how),
        f(*x),
        f(*w),
        atol=3e-6,
    )


conv("1d", (2, 9, 3), (3, 3, 4))
conv("1d strided, dilated", (2, 12, 3), (3, 3, 4), window_strides=(2,), rhs_dilation=(2,), padding="VALID")
conv("1d causal", (2, 9, 3), (3, 3, 4), padding=[(2, 0)])
conv("1d depthwise", (2, 9, 4), (3, 1, 4), feature_group_count=4)
conv("1d in groups", (2, 9, 4), (3, 2, 6), feature_group_count=2)
conv("1d NCW", (2, 3, 9), (4, 3, 3), spec=("NCW", "OIW", "NCW"))
conv("1d transposed", (2, 9, 3), (3, 3, 4), lhs_dilation=(2,), padding=[(1, 2)])
conv("2d", (2, 6, 7, 3), (3, 3, 3, 4))
conv("2d strided", (2, 7, 8, 3), (3, 3, 3, 4), window_strides=(2, 2))
conv("2d valid", (2, 6, 7, 3), (3, 2, 3, 4), padding="VALID")
conv("2d explicit", (2, 6, 7, 3), (3, 3, 3, 4), padding=[(2, 0), (1, 3)])
conv("2d dilated", (2, 8, 9, 3), (3, 3, 3, 4), rhs_dilation=(2, 2))
conv("2d NCHW", (2, 3, 6, 7), (4, 3, 3, 3), spec=("NCHW", "OIHW", "NCHW"))
conv("2d depthwise", (2, 6, 7, 4), (3, 3, 1, 8), feature_group_count=4)
conv("2d in groups", (2, 6, 7, 4), (3, 3, 2, 6), feature_group_count=2)
conv("2d in groups, strided", (2, 6, 7, 4), (3, 3, 2, 6), feature_group_count=2, window_strides=(2, 1))
conv("2d transposed", (2, 4, 5, 3), (3, 3, 3, 4), lhs_dilation=(2, 2), padding=[(1, 2), (2, 1)])
conv(
    "2d transposed and strided",
    (2, 4, 5, 3),
    (3, 3, 3, 4),
    lhs_dilation=(3, 2),
    window_strides=(2, 1),
    padding=[(0, 1), (2, 0)],
)
conv(
    "2d transposed depthwise",
    (2, 4, 5, 4),
    (3, 3, 1, 4),
    lhs_dilation=(2, 2),
    feature_group_count=4,
    padding=[(1, 1), (2, 0)],
)
conv("2d batch groups", (4, 6, 7, 3), (3, 3, 3, 4), batch_group_count=2)
conv("2d batch groups, depthwise", (4, 5, 5, 3), (3, 3, 3, 4), batch_group_count=4)
conv("2d 1x1", (2, 4, 5, 3), (1, 1, 3, 4))
conv("2d 1x1 strided", (2, 4, 5, 3), (1, 1, 3, 4), window_strides=(2, 2))
conv("3d", (2, 4, 5, 6, 2), (3, 3, 3, 2, 4))
conv("3d strided", (1, 5, 5, 6, 2), (2, 3, 2, 2, 4), window_strides=(2, 1, 2), padding="VALID")
conv("3d dilated", (1, 5, 5, 6, 2), (2, 2, 2, 2, 3), rhs_dilation=(2, 1, 2))
conv("3d NCDHW", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), spec=("NCDHW", "OIDHW", "NCDHW"))
conv("3d transposed", (1, 3, 3, 3, 2), (2, 2, 2, 2, 3), lhs_dilation=(2, 2, 2), padding=[(1, 1), (0, 1), (1, 0)])
conv("3d in groups", (1, 4, 4, 4, 4), (2, 2, 2, 2, 4), feature_group_count=2)
conv("3d depthwise", (1, 4, 4, 4, 4), (2, 2, 2, 1, 4), feature_group_count=4)
case("conv_transpose", lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), f(2, 4, 5, 3), f(3, 3, 3, 4), atol=3e-6)
case("convolve", lambda x, w: (jnp.convolve(x, w), jnp.correlate(x, w, "same")), f(9), f(3))
case("patches", lambda x: lax.conv_general_dilated_patches(x, (2, 2), (2, 2), "VALID"), f(2, 3, 4, 6))


def window(
    name: str,
    shape: tuple,
    size: tuple,
    strides: tuple | None = None,
    padding: Any = "VALID",
    kinds: str = "max min sum",
    integers: bool = False,
    gradient: bool = True,
    **how: Any,
) -> None:
    monoids = {"max": (-np.inf, lax.max), "min": (np.inf, lax.min), "sum": (0.0, lax.add)}
    for kind in kinds.split():
        start, monoid = monoids[kind]
        x = i(*shape) if integers else f(*shape)
        zero = np.int32(0 if kind == "sum" else np.iinfo(np.int32).min if kind == "max" else np.iinfo(np.int32).max)
        first = zero if integers else np.float32(start)
        case(
            f"reduce_window {kind} {name}",
            lambda x, s=first, m=monoid: lax.reduce_window(x, s, m, size, strides or (1,) * len(size), padding, **how),
            x,
            gradient=gradient,
        )


window("2d", (2, 6, 6, 3), (1, 2, 2, 1), (1, 2, 2, 1))
window("2d overlapping", (2, 6, 7, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
window("1d", (2, 8, 3), (1, 3, 1), (1, 2, 1))
window("of a vector", (8,), (3,), (2,))
window("3d", (1, 4, 4, 6, 2), (1, 2, 2, 2, 1), (1, 2, 2, 2, 1))
window("3d overlapping", (1, 4, 5, 4, 2), (1, 3, 2, 3, 1), (1, 1, 2, 1, 1), "SAME")
window("NCHW", (2, 3, 6, 6), (1, 1, 2, 2), (1, 1, 2, 2))
window("dilated", (1, 8, 8, 2), (1, 2, 2, 1), window_dilation=(1, 2, 2, 1), gradient=False)
window("spread out", (1, 4, 4, 2), (1, 2, 2, 1), base_dilation=(1, 2, 2, 1))
window("over all axes", (3, 4, 5, 2), (2, 2, 2, 2))
window("negative padding", (1, 6, 6, 2), (1, 2, 2, 1), padding=((0, 0), (-1, 0), (0, -1), (0, 0)), gradient=False)
window("of integers", (1, 6, 6, 2), (1, 2, 2, 1), (1, 2, 2, 1), integers=True)
window("of integers, overlapping", (1, 6, 6, 2), (1, 3, 3, 1), (1, 2, 2, 1), "SAME", integers=True)
case(
    "reduce_window max with ties",
    lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME"),
    np.round(f(1, 5, 5, 2)),
)
case(
    "reduce_window prod", lambda x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (2, 2), "VALID"), f(4, 4), gradient=False
)
for kind, start, monoid in (
    ("or", False, lax.bitwise_or),
    ("and", True, lax.bitwise_and),
    ("xor", False, lax.bitwise_xor),
):
    for name, how in (
        ("padded", {}),
        ("spread out", {"base_dilation": (1, 2)}),
        ("dilated", {"window_dilation": (1, 2)}),
    ):
        case(
            f"reduce_window {kind} of bools, {name}",
            lambda x, s=start, m=monoid, how=how: lax.reduce_window(
                x, np.bool_(s), m, (1, 3), (1, 1), ((0, 0), (2, 1)), **how
            ),
            f(3, 9) > 0,
            gradient=False,
        )
case(
    "reduce_window prod, padded",
    lambda x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (2, 2), ((1, 1), (0, 2))),
    f(4, 4),
    gradient=False,
)
case(
    "average pool",
    lambda x: (
        lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        / lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    ),
    f(2, 6, 6, 3),
)
case(
    "select_and_scatter_add",
    lambda x, g: jax.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), x)[1](
        g
    )[0],
    f(2, 6, 6, 3),
    f(2, 3, 3, 3),
)
case(
    "select_and_scatter_add, overlapping",
    lambda x, g: jax.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), x)[1](g)[
        0
    ],
    f(2, 6, 6, 3),
    f(2, 3, 3, 3),
)
case(
    "image resize",
    lambda x: (
        jax.image.resize(x, (1, 8, 8, 2), "bilinear"),
        jax.image.resize(x, (1, 8, 8, 2), "nearest"),
        jax.image.resize(x, (1, 3, 2, 2), "bicubic"),
    ),
    f(1, 4, 4, 2),
)
conv("1d transposed, padded widely", (1, 4, 3), (3, 3, 5), lhs_dilation=(2,), padding=[(5, 6)])
