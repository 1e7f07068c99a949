"""Arithmetic, comparisons and functions of single elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.frontends.torch.derivatives import absolute, angle, between, clipped, finite, maximum, minimum, power_of
from converter.frontends.torch.registry import Call, NotImportable, Rules

rule = Rules()

#: Functions that JAX's NumPy has by the same name, or another.
_SAME: dict[str, Any] = {
    "abs": absolute,
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_not": jnp.bitwise_not,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
    "bitwise_left_shift": jnp.left_shift,
    "bitwise_right_shift": jnp.right_shift,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "deg2rad": jnp.deg2rad,
    "digamma": jax.scipy.special.digamma,
    "eq": jnp.equal,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "erfinv": jax.scipy.special.erfinv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "floor_divide": jnp.floor_divide,
    "fmod": jnp.fmod,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "le": jnp.less_equal,
    "lgamma": jax.scipy.special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "logaddexp": jnp.logaddexp,
    "logical_and": jnp.logical_and,
    "logical_not": jnp.logical_not,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": jnp.less,
    "maximum": maximum,
    "minimum": minimum,
    "mul": jnp.multiply,
    "ne": jnp.not_equal,
    "neg": jnp.negative,
    "reciprocal": jnp.reciprocal,
    "remainder": jnp.remainder,
    "rsqrt": lax.rsqrt,
    "sign": jnp.sign,
    "sgn": jnp.sign,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
}
for _name, _function in _SAME.items():
    rule.computes(_function, [_name])


@rule("add")
def add(call: Call, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return jnp.logical_or(x, y) if call.dtype == np.bool_ else jnp.add(x, y if alpha == 1 else jnp.multiply(y, alpha))


@rule("sub")
def sub(call: Call, x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return jnp.subtract(x, y if alpha == 1 else jnp.multiply(y, alpha))


@rule("rsub")
def rsub(call: Call, x: Any, y: Any, alpha: Any = 1) -> Any:
    return jnp.subtract(y, x if alpha == 1 else jnp.multiply(x, alpha))


@rule("div")
def div(call: Call, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return jnp.true_divide(x, y)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    if call.dtype.kind in "iu":
        return lax.div(*jnp.broadcast_arrays(jnp.asarray(x, call.dtype), jnp.asarray(y, call.dtype)))
    return jnp.trunc(jnp.true_divide(x, y))


@rule("pow")
def power(call: Call, x: Any, y: Any) -> Any:
    if isinstance(y, int | float) and not isinstance(y, bool):
        if y == 0.5:
            return jnp.sqrt(x)
        if y == -0.5:
            return lax.rsqrt(x)
        if float(y).is_integer() and abs(y) < 64:
            return lax.integer_pow(jnp.asarray(x), int(y))
    both = jnp.ndim(x) and jnp.ndim(y) and call.dtype.kind == "f"
    return power_of(x.astype(call.dtype), y.astype(call.dtype)) if both else jnp.power(x, y)


@rule("round")
def round_(call: Call, x: Any, *, decimals: int = 0) -> Any:
    return jnp.round(x, decimals)


@rule("frac")
def frac(call: Call, x: Any) -> Any:
    return x - jnp.trunc(x)


@rule("clamp", "clip")
def clamp(call: Call, x: Any, low: Any = None, high: Any = None) -> Any:
    if not hasattr(low, "shape") and not hasattr(high, "shape"):
        return clipped(x, low, high)
    if low is not None and high is not None:
        return between(x, low, high)
    return minimum(x, high) if low is None else maximum(x, low)


@rule("clamp_min")
def clamp_min(call: Call, x: Any, low: Any) -> Any:
    return clamp(call, x, low)


@rule("clamp_max")
def clamp_max(call: Call, x: Any, high: Any) -> Any:
    return clamp(call, x, None, high)


@rule("fmax")
def fmax(call: Call, x: Any, y: Any) -> Any:
    return jnp.where(jnp.isnan(x), y, jnp.where(jnp.isnan(y), x, maximum(x, y)))


@rule("fmin")
def fmin(call: Call, x: Any, y: Any) -> Any:
    return jnp.where(jnp.isnan(x), y, jnp.where(jnp.isnan(y), x, minimum(x, y)))


@rule("atan2")
def atan2(call: Call, y: Any, x: Any) -> Any:
    return angle(jnp.asarray(y).astype(call.dtype), jnp.asarray(x).astype(call.dtype))


@rule("hypot")
def hypot(call: Call, x: Any, y: Any) -> Any:
    return jnp.sqrt(x * x + y * y)


@rule("copysign")
def copysign(call: Call, x: Any, y: Any) -> Any:
    size = jnp.where(x == 0, 0.0, jnp.abs(x))  # PyTorch's derivative at 0 is 0
    return jnp.where(jnp.signbit(y), -size, size).astype(call.dtype)


@rule("sinc")
def sinc(call: Call, x: Any) -> Any:
    angle = np.float32(np.pi) * jnp.where(x == 0, 1.0, x)
    return jnp.where(x == 0, 1.0, jnp.sin(angle) / angle)


@rule("where")
def where(call: Call, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None:
        raise NotImportable("where of one operand, whose result has no fixed size", "use where(condition, x, y)")
    return jnp.where(condition, x, y)


@rule("masked_fill")
def masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


@rule("lerp")
def lerp(call: Call, x: Any, y: Any, weight: Any) -> Any:
    return x + weight * (y - x)


@rule("addcmul")
def addcmul(call: Call, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + (y * z if value == 1 else value * y * z)


@rule("addcdiv")
def addcdiv(call: Call, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + value * (y / z)


@rule("nan_to_num")
def nan_to_num(call: Call, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    return finite(x, nan or 0.0, posinf, neginf)


@rule("_to_copy", "to", "type_as")
def to_copy(call: Call, x: Any, *_: Any, **__: Any) -> Any:
    return jnp.asarray(x).astype(call.dtype)


@rule(
    "clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh", "_conj", "resolve_conj", "resolve_neg", "view_as"
)
def same(call: Call, x: Any, *_: Any, **__: Any) -> Any:
    return x


@rule("detach", "detach_", "pocketune.stop_gradient")
def detach(call: Call, x: Any) -> Any:
    return lax.stop_gradient(x)
