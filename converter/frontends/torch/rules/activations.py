"""Activation functions, softmax and dropout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import jax_frontend
from converter.frontends.torch.derivatives import clipped
from converter.frontends.torch.registry import Call, Rules

rule = Rules()

rule.computes(jax.nn.relu, ["relu"])
rule.computes(jax.nn.relu6, ["relu6"])
rule.computes(jax.nn.sigmoid, ["sigmoid"])
rule.computes(jax.nn.silu, ["silu"])
rule.computes(jax.nn.hard_sigmoid, ["hardsigmoid"])
rule.computes(jax.nn.selu, ["selu"])
rule.computes(jax.nn.log_sigmoid, ["log_sigmoid"])


@rule("hardswish")
def hardswish(call: Call, x: Any) -> Any:
    inside = jnp.where(x < 3, x * (x + 3) / 6, x)
    return jnp.where(x <= -3, 0.0, inside)  # not as in JAX, whatever cotangent comes


@rule("gelu")
def gelu(call: Call, x: Any, *, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@rule("mish")
def mish(call: Call, x: Any) -> Any:
    return x * jnp.tanh(jax.nn.softplus(x))


@rule("hardtanh")
def hardtanh(call: Call, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return clipped(x, low, high)


@rule("leaky_relu")
def leaky_relu(call: Call, x: Any, slope: float = 0.01) -> Any:
    return jnp.where(x > 0, x, slope * x)  # at 0 its slope is that below, as that of jax.nn.leaky_relu is not


@rule("rrelu")
def rrelu(call: Call, x: Any, low: float = 1 / 8, high: float = 1 / 3, *_: Any) -> Any:
    return leaky_relu(call, x, (low + high) / 2)


@rule("elu")
def elu(call: Call, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = jnp.where(x > 0, 0.0, x)
    y = jnp.where(x > 0, x, alpha * jnp.expm1(below * input_scale if input_scale != 1 else below))
    return y if scale == 1 else scale * y


@rule("celu")
def celu(call: Call, x: Any, alpha: float = 1.0) -> Any:
    return jax.nn.celu(x, alpha)


@rule("softplus")
def softplus(call: Call, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = x if beta == 1 else x * beta
    smooth = jax.nn.softplus(scaled) if beta == 1 else jax.nn.softplus(scaled) / beta
    return jnp.where(scaled > threshold, x, smooth)


@rule("softshrink", "pocketune.softshrink")
def softshrink(call: Call, x: Any, limit: float = 0.5) -> Any:
    return jnp.where(x > limit, x - limit, jnp.where(x < -limit, x + limit, 0.0))


@rule("hardshrink")
def hardshrink(call: Call, x: Any, limit: float = 0.5) -> Any:
    return jnp.where((x > limit) | (x < -limit), x, 0.0)


@rule("threshold")
def threshold(call: Call, x: Any, limit: Any, value: Any) -> Any:
    return jnp.where(x > limit, x, value)


@rule("prelu")
def prelu(call: Call, x: Any, slope: Any) -> Any:
    if slope.size > 1 and x.ndim > 1:
        slope = slope.reshape(1, -1, *[1] * (x.ndim - 2))
    return jnp.where(x > 0, x, slope * x)


@rule("_prelu_kernel")
def prelu_kernel(call: Call, x: Any, slope: Any) -> Any:
    return jnp.where(x > 0, x, slope * x)


@rule("glu")
def glu(call: Call, x: Any, axis: int = -1) -> Any:
    value, gate = jnp.split(x, 2, axis)
    return value * jax.nn.sigmoid(gate)


@rule("_softmax", "softmax", "_safe_softmax")
def softmax(call: Call, x: Any, axis: int, *_: Any, **__: Any) -> Any:
    return jax.nn.softmax(x.astype(call.dtype), axis) if x.ndim else jnp.ones_like(x)


@rule("_log_softmax", "log_softmax")
def log_softmax(call: Call, x: Any, axis: int, *_: Any, **__: Any) -> Any:
    return jax.nn.log_softmax(x.astype(call.dtype), axis) if x.ndim else jnp.zeros_like(x)


@rule("pocketune.dropout")
def dropout(call: Call, x: Any, rate: float, shared: list[int]) -> Any:
    return x if call.layer in call.findings.modes.evaluated else jax_frontend.dropout(x, rate, shared)
