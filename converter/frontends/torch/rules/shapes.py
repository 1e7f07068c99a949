"""Views, concatenation, padding, and tensors made of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.frontends.torch.registry import Call, NotImportable, Rules

rule = Rules()

_OPEN_END = 2**62


@rule("view", "reshape", "_unsafe_view", "unflatten", "flatten", "_reshape_alias", "ravel")
def reshape(call: Call, x: Any, *_: Any) -> Any:
    value = call.node.meta["val"]
    if value.dtype.itemsize != x.dtype.itemsize and "dtype" in str(call.node.target):
        raise NotImportable("a view of the bits of a tensor as another type")
    return x.reshape(tuple(int(d) for d in value.shape))


@rule("permute")
def permute(call: Call, x: Any, axes: Sequence[int]) -> Any:
    return jnp.transpose(x, [a % x.ndim for a in axes])


@rule("transpose", "swapaxes")
def transpose(call: Call, x: Any, first: int, second: int) -> Any:
    return jnp.swapaxes(x, first, second) if x.ndim else x


@rule("t", "numpy_T", "mT")
def transposed(call: Call, x: Any) -> Any:
    return x if x.ndim < 2 else jnp.swapaxes(x, -1, -2)


@rule("squeeze")
def squeeze(call: Call, x: Any, axes: Any = None) -> Any:
    wanted = range(x.ndim) if axes is None else axes if isinstance(axes, Sequence) else [axes]
    return jnp.squeeze(x, tuple(a % x.ndim for a in wanted if x.ndim and x.shape[a] == 1))


@rule("unsqueeze")
def unsqueeze(call: Call, x: Any, axis: int) -> Any:
    return jnp.expand_dims(x, axis)


@rule("expand")
def expand(call: Call, x: Any, sizes: Sequence[int], **_: Any) -> Any:
    lead = len(sizes) - x.ndim
    return jnp.broadcast_to(x, [x.shape[i - lead] if n == -1 else int(n) for i, n in enumerate(sizes)])


@rule("expand_as", "broadcast_to")
def expand_as(call: Call, x: Any, *_: Any) -> Any:
    return jnp.broadcast_to(x, tuple(int(d) for d in call.node.meta["val"].shape))


@rule("repeat", "tile")
def repeat(call: Call, x: Any, times: Sequence[int]) -> Any:
    return jnp.tile(x, tuple(times))


@rule("repeat_interleave")
def repeat_interleave(call: Call, x: Any, times: Any, axis: int | None = None, **_: Any) -> Any:
    if not isinstance(times, int):
        raise NotImportable("repeat_interleave by a tensor of counts", "give one number of repeats")
    return jnp.repeat(x.reshape(-1) if axis is None else x, times, 0 if axis is None else axis)


@rule("cat", "concat", "concatenate")
def cat(call: Call, parts: Sequence[Any], axis: int = 0) -> Any:
    full = [p for p in parts if p.shape != (0,)] or list(parts)[:1]
    return jnp.concatenate([p.astype(call.dtype) for p in full], axis)


@rule("stack")
def stack(call: Call, parts: Sequence[Any], axis: int = 0) -> Any:
    return jnp.stack(parts, axis)


def _sliced(x: Any, axis: int, begin: int, end: int, step: int = 1) -> Any:
    axis %= x.ndim
    return lax.slice_in_dim(x, begin, max(begin, end), step, axis)


@rule("slice")
def slice_(call: Call, x: Any, axis: int = 0, begin: int | None = None, end: int | None = None, step: int = 1) -> Any:
    size = x.shape[axis]
    first, last, step = slice(begin, None if end is None or end > _OPEN_END else end, step).indices(size)
    return _sliced(x, axis, first, last, step)


@rule("narrow")
def narrow(call: Call, x: Any, axis: int, begin: int, length: int) -> Any:
    begin = begin % x.shape[axis] if begin < 0 else begin
    return _sliced(x, axis, begin, begin + length)


@rule("select")
def select(call: Call, x: Any, axis: int, index: Any) -> Any:
    if not isinstance(index, int):
        return jnp.take(x, index, axis, mode="clip")
    index += x.shape[axis] if index < 0 else 0
    return jnp.squeeze(_sliced(x, axis, index, index + 1), axis)


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def split(call: Call, x: Any, sizes: Any, axis: int = 0) -> Any:
    if isinstance(sizes, int):
        sizes = [sizes] * -(-x.shape[axis] // sizes)
    ends = [min(int(e), x.shape[axis]) for e in np.cumsum(sizes)]
    return [_sliced(x, axis, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


@rule("chunk", "unsafe_chunk")
def chunk(call: Call, x: Any, count: int, axis: int = 0) -> Any:
    return split(call, x, -(-x.shape[axis] // count), axis)


@rule("unbind")
def unbind(call: Call, x: Any, axis: int = 0) -> Any:
    return [jnp.squeeze(_sliced(x, axis, i, i + 1), axis) for i in range(x.shape[axis])]


@rule("select_scatter")
def select_scatter(call: Call, x: Any, part: Any, axis: int, index: int) -> Any:
    index += x.shape[axis] if index < 0 else 0
    return slice_scatter(call, x, jnp.expand_dims(part, axis), axis, index, index + 1)


@rule("slice_scatter")
def slice_scatter(
    call: Call, x: Any, part: Any, axis: int = 0, begin: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    axis %= x.ndim
    first, last, step = slice(begin, None if end is None or end > _OPEN_END else end, step).indices(x.shape[axis])
    if step == 1:
        parts = [
            _sliced(x, axis, 0, first),
            part.astype(x.dtype),
            _sliced(x, axis, max(first, last), x.shape[axis]),
        ]
        return jnp.concatenate([p for p in parts if p.shape[axis]], axis)
    places = (slice(None),) * axis + (np.arange(first, last, step),)
    return jnp.asarray(x).at[places].set(part)


@rule("constant_pad_nd")
def constant_pad(call: Call, x: Any, pads: Sequence[int], value: Any = 0) -> Any:
    pairs = [(int(low), int(high), 0) for low, high in zip(pads[::2], pads[1::2], strict=True)]
    return lax.pad(x, jnp.asarray(value, x.dtype), [*[(0, 0, 0)] * (x.ndim - len(pairs)), *pairs[::-1]])


@rule("pad")
def pad(call: Call, x: Any, pads: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    if mode == "constant":
        return constant_pad(call, x, pads, 0 if value is None else value)
    return _padded(x, pads, {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


def _padded(x: Any, pads: Sequence[int], mode: str) -> Any:
    pairs = [(int(low), int(high)) for low, high in zip(pads[::2], pads[1::2], strict=True)]
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - len(pairs)), *pairs[::-1]], mode=mode)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(call: Call, x: Any, pads: Sequence[int]) -> Any:
    return _padded(x, pads, "reflect")


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(call: Call, x: Any, pads: Sequence[int]) -> Any:
    return _padded(x, pads, "edge")


@rule("flip")
def flip(call: Call, x: Any, axes: Sequence[int]) -> Any:
    return jnp.flip(x, tuple(axes))


@rule("roll")
def roll(call: Call, x: Any, shifts: Any, axes: Any = ()) -> Any:
    axes = tuple(axes) if isinstance(axes, Sequence) else (axes,)
    return jnp.roll(x, tuple(shifts) if isinstance(shifts, Sequence) else shifts, axes or None)


@rule("unfold")
def unfold(call: Call, x: Any, axis: int, size: int, step: int) -> Any:
    count = (x.shape[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    windows = jnp.take(x, places, axis % x.ndim, mode="clip")
    return jnp.moveaxis(windows, axis % x.ndim + 1, -1)


@rule("diagonal")
def diagonal(call: Call, x: Any, offset: int = 0, first: int = 0, second: int = 1) -> Any:
    return jnp.diagonal(x, offset, first, second)


@rule("tril")
def tril(call: Call, x: Any, diagonal: int = 0) -> Any:
    return jnp.where(np.tri(x.shape[-2], x.shape[-1], diagonal, dtype=bool), x, jnp.zeros_like(x))


@rule("triu")
def triu(call: Call, x: Any, diagonal: int = 0) -> Any:
    return jnp.where(np.tri(x.shape[-2], x.shape[-1], diagonal - 1, dtype=bool), jnp.zeros_like(x), x)


@rule("pixel_shuffle")
def pixel_shuffle(call: Call, x: Any, factor: int) -> Any:
    *lead, c, h, w = x.shape
    n = len(lead)
    parts = x.reshape(*lead, c // factor**2, factor, factor, h, w)
    parts = parts.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return parts.reshape(*lead, c // factor**2, h * factor, w * factor)


@rule("pixel_unshuffle")
def pixel_unshuffle(call: Call, x: Any, factor: int) -> Any:
    *lead, c, h, w = x.shape
    n = len(lead)
    parts = x.reshape(*lead, c, h // factor, factor, w // factor, factor)
    parts = parts.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return parts.reshape(*lead, c * factor**2, h // factor, w // factor)


@rule("channel_shuffle")
def channel_shuffle(call: Call, x: Any, groups: int) -> Any:
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return jnp.swapaxes(parts, 1, 2).reshape(x.shape)


# -- tensors made of numbers -------------------------------------------------------------------------------------------


@rule("arange")
def arange(call: Call, *bounds: Any, **_: Any) -> Any:
    return np.arange(*bounds).astype(call.dtype)


@rule("linspace")
def linspace(call: Call, begin: Any, end: Any, count: int, **_: Any) -> Any:
    return np.linspace(begin, end, count).astype(call.dtype)


@rule("full", "full_like", "new_full")
def full(call: Call, like: Any, *rest: Any, **_: Any) -> Any:
    value = rest[-1]
    return np.full(tuple(int(d) for d in call.node.meta["val"].shape), value, call.dtype)


@rule("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
def zeros(call: Call, *_: Any, **__: Any) -> Any:
    return np.zeros(tuple(int(d) for d in call.node.meta["val"].shape), call.dtype)


@rule("ones", "ones_like", "new_ones")
def ones(call: Call, *_: Any, **__: Any) -> Any:
    return np.ones(tuple(int(d) for d in call.node.meta["val"].shape), call.dtype)


@rule("scalar_tensor")
def scalar_tensor(call: Call, value: Any, **_: Any) -> Any:
    return np.asarray(value, call.dtype)


@rule("eye")
def eye(call: Call, rows: int, columns: int | None = None, **_: Any) -> Any:
    return np.eye(rows, columns, dtype=call.dtype)


@rule("fill")
def fill(call: Call, x: Any, value: Any) -> Any:
    return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)


@rule("copy")
def copy(call: Call, x: Any, source: Any, *_: Any) -> Any:
    return jnp.broadcast_to(jnp.asarray(source).astype(x.dtype), x.shape)


@rule("tril_indices")
def tril_indices(call: Call, rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
    return np.stack(np.tril_indices(rows, offset, columns))


@rule("triu_indices")
def triu_indices(call: Call, rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
    return np.stack(np.triu_indices(rows, offset, columns))


@rule("meshgrid")
def meshgrid(call: Call, axes: Sequence[Any], *, indexing: str = "ij") -> Any:
    return jnp.meshgrid(*axes, indexing=indexing)
