"""Pooling and resampling of images, in PyTorch's layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.frontends.torch.registry import Call, NotImportable, Rules

rule = Rules()


def _each(values: Any, count: int) -> list[int]:
    given = list(values) if isinstance(values, Sequence) else [values]
    return [int(v) for v in given] * (count if len(given) == 1 else 1)


def _ends(size: int, window: int, stride: int, pad: int, dilation: int, ceil: bool) -> tuple[int, int]:
    """Padding after an axis, and how many windows lie on it."""
    reach = dilation * (window - 1) + 1
    count = (size + 2 * pad - reach + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= size + pad:
        count -= 1
    return (count - 1) * stride + reach - size - pad, count


def _windows(
    x: Any, unit: Any, function: Any, window: list[int], stride: list[int], low: list[int], high: list[int], spread: Any
) -> Any:
    """Reduce windows of the last axes, which the kernels want before the channels."""
    lead, spatial = x.ndim - len(window), len(window)
    transposed = lead == 2
    if transposed:
        x = jnp.moveaxis(x, 1, -1)
    around = [1] * (1 if transposed else lead), [1] if transposed else []
    pads = [(lo, hi) for lo, hi in zip(low, high, strict=True)]
    y = lax.reduce_window(
        x,
        unit,
        function,
        [*around[0], *window, *around[1]],
        [*around[0], *stride, *around[1]],
        [*[(0, 0)] * len(around[0]), *pads, *[(0, 0)] * len(around[1])],
        window_dilation=[*around[0], *spread, *around[1]] if any(d > 1 for d in spread) else None,
    )
    return jnp.moveaxis(y, -1, 1) if transposed and spatial else y


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    call: Call, x: Any, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    spatial = int(str(call.node.target).partition("pool")[2][0])
    sizes = _each(window, spatial)
    steps = _each(stride, spatial) if stride else sizes
    pads, spread = _each(padding, spatial), _each(dilation, spatial)
    high = [
        max(_ends(n, k, s, p, d, ceil)[0], 0)
        for n, k, s, p, d in zip(x.shape[-spatial:], sizes, steps, pads, spread, strict=True)
    ]
    return _windows(x, -jnp.inf, lax.max, sizes, steps, pads, high, spread)


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(call: Call, *operands: Any, **options: Any) -> Any:
    return (max_pool(call, *operands, **options), None)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    call: Call,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    spatial = int(str(call.node.target).partition("pool")[2][0])
    sizes = _each(window, spatial)
    steps = _each(stride, spatial) if stride else sizes
    pads = _each(padding, spatial)
    ends = [_ends(n, k, s, p, 1, ceil) for n, k, s, p in zip(x.shape[-spatial:], sizes, steps, pads, strict=True)]
    y = _windows(x, 0.0, lax.add, sizes, steps, pads, [max(high, 0) for high, _ in ends], [1] * spatial)
    return y / _counts(x.shape[-spatial:], sizes, steps, pads, [count for _, count in ends], count_pad, divisor)


def _counts(
    shape: Sequence[int],
    sizes: list[int],
    steps: list[int],
    pads: list[int],
    counts: list[int],
    count_pad: bool,
    divisor: int | None,
) -> Any:
    """What the sum of each window is divided by."""
    if divisor is not None:
        return float(divisor)
    total = np.ones((), np.float32)
    for n, k, s, p, count in zip(shape, sizes, steps, pads, counts, strict=True):
        begin = np.arange(count) * s - p
        end = np.minimum(begin + k, n + p) if count_pad else np.minimum(begin + k, n)
        here = end - (begin if count_pad else np.maximum(begin, 0))
        total = total[..., None] * here.astype(np.float32)
    return float(total.flat[0]) if (total == total.flat[0]).all() else total


@rule(
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
)
def adaptive_avg_pool(call: Call, x: Any, sizes: Any) -> Any:
    spatial = int(str(call.node.target).partition("pool")[2][0])
    wanted = _wanted(x, sizes, spatial)
    shape = x.shape[-spatial:]
    if all(w == 1 for w in wanted):
        return jnp.mean(x, tuple(range(x.ndim - spatial, x.ndim)), keepdims=True)
    if all(n % w == 0 for n, w in zip(shape, wanted, strict=True)):
        window = [n // w for n, w in zip(shape, wanted, strict=True)]
        y = _windows(x, 0.0, lax.add, window, window, [0] * spatial, [0] * spatial, [1] * spatial)
        return y / float(np.prod(window))
    for axis, (n, w) in enumerate(zip(shape, wanted, strict=True)):
        matrix = np.zeros((n, w), np.float32)
        for i, (begin, end) in enumerate(_bins(n, w)):
            matrix[begin:end, i] = 1 / (end - begin)
        x = _along(x, matrix, x.ndim - spatial + axis)
    return x


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: Call, x: Any, sizes: Any) -> Any:
    spatial = int(str(call.node.target).partition("pool")[2][0])
    shape, wanted = x.shape[-spatial:], _wanted(x, sizes, spatial)
    none, ones = [0] * spatial, [1] * spatial
    if all(n % w == 0 for n, w in zip(shape, wanted, strict=True)):
        window = [n // w for n, w in zip(shape, wanted, strict=True)]
        return (_windows(x, -jnp.inf, lax.max, window, window, none, none, ones), None)
    for axis in reversed(range(spatial)):  # the last first: of equal ones the first in order gets the gradient
        at, parts = x.ndim - spatial + axis, []
        for begin, end in _bins(x.shape[at], wanted[axis]):
            window = [end - begin if i == axis else 1 for i in range(spatial)]
            part = lax.slice_in_dim(x, begin, end, axis=at)
            parts.append(_windows(part, -jnp.inf, lax.max, window, ones, none, none, ones))
        x = jnp.concatenate(parts, at)
    return (x, None)


def _wanted(x: Any, sizes: Any, spatial: int) -> list[int]:
    given = list(sizes) if isinstance(sizes, Sequence) else [sizes] * spatial
    return [x.shape[i - spatial] if w is None else int(w) for i, w in enumerate(given)]


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _along(x: Any, matrix: np.ndarray, axis: int) -> Any:
    """Multiply an axis by a matrix."""
    return jnp.moveaxis(jnp.matmul(jnp.moveaxis(x, axis, -1), matrix), -1, axis)


# -- resampling --------------------------------------------------------------------------------------------------------


def _sizes(call: Call, spatial: int) -> list[int]:
    return [int(n) for n in call.node.meta["val"].shape[-spatial:]]


def _scales(operands: Sequence[Any], spatial: int, x: Any, sizes: Sequence[int]) -> list[float]:
    """How many places of the input one of the output is, along each axis."""
    given: list[Any] = []
    for operand in operands:
        if isinstance(operand, Sequence) and operand and all(isinstance(v, float) for v in operand):
            given = list(operand)
    if not given:
        given = [v for v in operands if isinstance(v, float)]
    if len(given) == spatial:
        return [1 / v for v in given]
    return [n / w for n, w in zip(x.shape[-spatial:], sizes, strict=True)]


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(call: Call, x: Any, *rest: Any, **_: Any) -> Any:
    return _nearest(call, x, rest, 0.0)


@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(call: Call, x: Any, *rest: Any, **_: Any) -> Any:
    return _nearest(call, x, rest, 0.5)


def _nearest(call: Call, x: Any, rest: Sequence[Any], shift: float) -> Any:
    spatial = x.ndim - 2
    sizes = _sizes(call, spatial)
    for i, (w, scale) in enumerate(zip(sizes, _scales(rest, spatial, x, sizes), strict=True)):
        axis, n = i + 2, x.shape[i + 2]
        places = np.minimum(np.floor((np.arange(w) + shift) * np.float32(scale)).astype(np.int32), n - 1)
        if w % n == 0 and (places == np.arange(w) // (w // n)).all():
            x = jnp.repeat(x, w // n, axis) if w != n else x
        else:
            x = jnp.take(x, places, axis, mode="clip")
    return x


@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def linear(call: Call, x: Any, size: Any, align: bool, *rest: Any, **_: Any) -> Any:
    spatial = x.ndim - 2
    sizes = _sizes(call, spatial)
    for i, (w, scale) in enumerate(zip(sizes, _scales([size, *rest], spatial, x, sizes), strict=True)):
        x = _along(x, _weights(x.shape[i + 2], w, scale, align), i + 2)
    return x


def _weights(size: int, wanted: int, scale: float, align: bool) -> np.ndarray:
    """Matrix [size, wanted] of linear interpolation."""
    if align:
        at = np.arange(wanted) * ((size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    else:
        at = np.maximum((np.arange(wanted) + 0.5) * scale - 0.5, 0.0)
    low = np.minimum(np.floor(at).astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.minimum(at - low, 1.0)
    matrix = np.zeros((size, wanted), np.float64)
    np.add.at(matrix, (low, np.arange(wanted)), 1 - part)
    np.add.at(matrix, (high, np.arange(wanted)), part)
    return matrix.astype(np.float32)


@rule("upsample_bicubic2d")
def cubic(call: Call, x: Any, size: Any, align: bool, *rest: Any, **_: Any) -> Any:
    sizes = _sizes(call, 2)
    for i, (w, scale) in enumerate(zip(sizes, _scales([size, *rest], 2, x, sizes), strict=True)):
        x = _along(x, _cubic_weights(x.shape[i + 2], w, scale, align), i + 2)
    return x


def _cubic_weights(size: int, wanted: int, scale: float, align: bool, a: float = -0.75) -> np.ndarray:
    """Matrix [size, wanted] of cubic convolution."""
    if align:
        at = np.arange(wanted) * ((size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    else:
        at = (np.arange(wanted) + 0.5) * scale - 0.5
    low = np.floor(at).astype(int)
    matrix = np.zeros((size, wanted), np.float64)
    for offset in range(-1, 3):
        heights = _cubic(np.abs(at - low - offset), a)
        np.add.at(matrix, (np.clip(low + offset, 0, size - 1), np.arange(wanted)), heights)
    return matrix.astype(np.float32)


@rule("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def antialiased(call: Call, x: Any, size: Any, align: bool, *rest: Any, **_: Any) -> Any:
    is_cubic, sizes = "bicubic" in str(call.node.target), _sizes(call, 2)
    for i, (w, scale) in enumerate(zip(sizes, _scales([size, *rest], 2, x, sizes), strict=True)):
        n = x.shape[i + 2]
        if align:
            scale = (n - 1) / (w - 1) if w > 1 else 0.0
        x = _along(x, _filtered_weights(n, w, scale, is_cubic), i + 2)
    return x


def _filtered_weights(size: int, wanted: int, scale: float, is_cubic: bool) -> np.ndarray:
    """Matrix [size, wanted] of a triangle or cubic (a = -0.5) that is as wide as what one place of the output covers.

    As in Pillow, and in ATen/native/cpu/UpSampleKernel.cpp.
    """
    wide, matrix = max(scale, 1.0), np.zeros((size, wanted), np.float64)
    support = (2.0 if is_cubic else 1.0) * wide
    for i in range(wanted):
        center = scale * (i + 0.5)
        places = np.arange(max(int(center - support + 0.5), 0), min(int(center + support + 0.5), size))
        d = np.abs((places - center + 0.5) / wide)
        heights = _cubic(d, -0.5) if is_cubic else np.maximum(1 - d, 0.0)
        matrix[places, i] = heights / heights.sum()
    return matrix.astype(np.float32)


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution of distances."""
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


@rule("im2col")
def im2col(call: Call, x: Any, window: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (_each(v, 2) for v in (window, dilation, padding, stride))
    x = jnp.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    h = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    w = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    parts = [
        x[:, :, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (w - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    return jnp.stack(parts, 2).reshape(x.shape[0], x.shape[1] * kh * kw, h * w)


@rule("grid_sampler_2d", "grid_sampler")
def grid_sampler(call: Call, *_: Any) -> Any:
    raise NotImportable("grid_sample", "sample at fixed places: F.interpolate, or an index that is constant")
