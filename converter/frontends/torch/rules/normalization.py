"""Normalization by statistics of the batch, of layers and of groups."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from converter.frontends.torch.registry import EXPORT_IN_EVAL, Call, NotImportable, Rules

rule = Rules()


def _by_channel(weights: Any, rank: int) -> Any:
    return weights.reshape(1, -1, *[1] * (rank - 2))


def _affine(y: Any, w: Any, bias: Any) -> Any:
    y = y if w is None else y * w
    return y if bias is None else y + bias


def _normalized(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    mean = jnp.mean(x, axes, keepdims=True)
    centered = x - mean
    return centered * lax.rsqrt(jnp.mean(centered * centered, axes, keepdims=True) + epsilon)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    call: Call, x: Any, w: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    return (_by_moving(call, x, w, bias, mean, variance, momentum, epsilon), None, None)


@rule("batch_norm")
def batch_norm(
    call: Call,
    x: Any,
    w: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
    _: bool = False,
) -> Any:
    if mean is None or training:
        _check_mode(call, training and mean is not None)
        return _by_batch(x, w, bias, epsilon)
    return _by_moving(call, x, w, bias, mean, variance, momentum, epsilon)


@rule("_native_batch_norm_legit_functional", "_native_batch_norm_legit.default", "native_batch_norm")
def batch_norm_training(
    call: Call,
    x: Any,
    w: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    epsilon: float,
) -> Any:
    y = batch_norm(call, x, w, bias, mean, variance, training, momentum, epsilon)
    return (y, None, None, mean, variance)


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    call: Call, x: Any, w: Any, bias: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    return (_by_batch(x, w, bias, epsilon), None, None)


def _check_mode(call: Call, by_own_batch: bool) -> None:
    """Raise NotImportable where a layer trains in a program of which no module says whether it always does."""
    if by_own_batch and not call.findings.modes.known:
        raise NotImportable("batch normalization of a module that was exported in train()", EXPORT_IN_EVAL)


def _by_moving(call: Call, x: Any, w: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float) -> Any:
    """Normalize by the moving statistics; the layer is told to the findings."""
    names = [call.name_of(i) for i in range(1, 5)]
    if names[2] is not None and names[3] is not None:
        call.findings.add_batch_norm(call.layer, names, momentum)
    rows = _rows_of(call)
    if rows is not None:  # the batch is its first axis, as batch_norm='train' wants it
        y = (x.reshape(rows) - mean) * _scale(w, variance, epsilon)
        return (y if bias is None else y + bias).reshape(x.shape)
    y = (x - _by_channel(mean, x.ndim)) * _by_channel(_scale(w, variance, epsilon), x.ndim)
    return y if bias is None else y + _by_channel(bias, x.ndim)


def _rows_of(call: Call) -> tuple[int, ...] | None:
    """Return the shape [rows, ..., channels] that an operand [rows * ..., channels] had before; None for any other."""
    given = call.node.args[0]
    name = getattr(given.target, "_schema", None) and given.target._schema.name
    if name not in ("aten::flatten", "aten::reshape", "aten::view") or given.meta["val"].dim() != 2:
        return None
    before = given.args[0].meta["val"].shape
    return tuple(map(int, before)) if len(before) > 2 and before[-1] == given.meta["val"].shape[-1] else None


def _scale(w: Any, variance: Any, epsilon: float) -> Any:
    root = lax.rsqrt(variance + epsilon)
    return root if w is None else root * w


def _by_batch(x: Any, w: Any, bias: Any, epsilon: float) -> Any:
    y = _normalized(x, (0, *range(2, x.ndim)), epsilon)
    return _affine(
        y, None if w is None else _by_channel(w, x.ndim), None if bias is None else _by_channel(bias, x.ndim)
    )


@rule("layer_norm")
def layer_norm(
    call: Call, x: Any, shape: list[int], w: Any = None, bias: Any = None, epsilon: float = 1e-5, *_: Any
) -> Any:
    if len(shape) > 1 and w is not None:
        w, bias = w.reshape(shape), None if bias is None else bias.reshape(shape)
    return _affine(_normalized(x, tuple(range(x.ndim - len(shape), x.ndim)), epsilon), w, bias)


@rule("native_layer_norm")
def native_layer_norm(call: Call, x: Any, shape: list[int], w: Any, bias: Any, epsilon: float) -> Any:
    return (layer_norm(call, x, shape, w, bias, epsilon), None, None)


@rule("rms_norm")
def rms_norm(call: Call, x: Any, shape: list[int], w: Any = None, epsilon: float | None = None) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    epsilon = float(jnp.finfo(x.dtype).eps) if epsilon is None else epsilon
    return _affine(x * lax.rsqrt(jnp.mean(x * x, axes, keepdims=True) + epsilon), w, None)


@rule("_fused_rms_norm")
def fused_rms_norm(call: Call, x: Any, shape: list[int], w: Any = None, epsilon: float | None = None) -> Any:
    return (rms_norm(call, x, shape, w, epsilon), None)


@rule("group_norm")
def group_norm(call: Call, x: Any, groups: int, w: Any = None, bias: Any = None, epsilon: float = 1e-5, *_: Any) -> Any:
    y = _normalized(x.reshape(x.shape[0], groups, -1), (2,), epsilon).reshape(x.shape)
    return _affine(
        y, None if w is None else _by_channel(w, x.ndim), None if bias is None else _by_channel(bias, x.ndim)
    )


@rule("native_group_norm")
def native_group_norm(
    call: Call, x: Any, w: Any, bias: Any, n: int, c: int, size: int, groups: int, epsilon: float
) -> Any:
    return (group_norm(call, x, groups, w, bias, epsilon), None, None)


@rule("instance_norm")
def instance_norm(
    call: Call,
    x: Any,
    w: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input: bool,
    momentum: float,
    epsilon: float,
    *_: Any,
) -> Any:
    if not use_input:
        raise NotImportable("instance_norm by moving statistics", "build it with track_running_stats=False")
    y = _normalized(x, tuple(range(2, x.ndim)), epsilon)
    return _affine(
        y, None if w is None else _by_channel(w, x.ndim), None if bias is None else _by_channel(bias, x.ndim)
    )
