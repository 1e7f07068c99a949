"""Elementwise arithmetic and functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import converter
from tests.jax_frontend.primitives.table import HUGE, INNER, LINE, NUMBERS, OTHERS, POSITIVE, b, case, f, i


def _known_to_log(values: np.ndarray) -> np.ndarray:
    """Without infinity where XNNPACK's LOG takes it for 2.4e38, as its kernels for AVX2 do."""
    (logarithms,) = converter.function(jnp.log, INFINITY).run(INFINITY)
    return values if np.isinf(logarithms).all() else values[np.isfinite(values)]


INFINITY = np.full(16, np.inf, np.float32)

# Elementwise functions of floats.
for _name, _values in {
    "neg": LINE, "abs": LINE, "sign": LINE, "floor": LINE, "ceil": LINE, "exp": LINE, "exp2": LINE, "expm1": LINE,
    "tanh": LINE, "logistic": LINE, "sin": LINE, "cos": LINE, "tan": LINE, "atan": LINE, "sinh": LINE, "cosh": LINE,
    "asinh": LINE, "erf": LINE, "erfc": LINE, "square": LINE, "cbrt": LINE[np.abs(LINE) > 0], "is_finite": LINE,
    "log": POSITIVE, "sqrt": POSITIVE, "rsqrt": POSITIVE, "log1p": np.concatenate([INNER, POSITIVE]),
    "asin": INNER, "acos": INNER, "atanh": INNER, "erf_inv": INNER, "acosh": POSITIVE[POSITIVE > 1],
    "lgamma": np.concatenate([POSITIVE, [-0.5, -1.3, -2.7, 2.001, 30.2]]),
    "digamma": np.concatenate([POSITIVE, [-0.5, -1.3, -2.7, 30.2]]),
}.items():  # fmt: skip
    case(_name, getattr(lax, _name), _values)
for _name in ("abs", "sign", "floor", "tanh", "atan", "asinh", "erf", "erfc", "square", "cbrt", "is_finite",
              "exp", "expm1"):  # fmt: skip
    _values = _known_to_log(HUGE) if _name == "asinh" else HUGE
    case(f"{_name} far out", getattr(lax, _name), _values, gradient=False)
for _name in ("sqrt", "log", "log1p"):
    _values = np.array([0.0, 1.0, np.inf])
    case(
        f"{_name} at zero", getattr(lax, _name), _values if _name == "sqrt" else _known_to_log(_values), gradient=False
    )
case("round to even", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), LINE)
case("round away", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), LINE)
case("round away where a half is lost", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
     np.array([0.49999997, -0.49999997, 8388609, -8388611, 4194303.5, 3e9]))  # fmt: skip
for _n in (-3, -2, -1, 0, 1, 2, 3, 4, 5, 8, 11):
    case(f"integer_pow {_n}", lambda x, n=_n: lax.integer_pow(x, n), LINE[np.abs(LINE) > 0.1] / 4)
case("pow", lax.pow, np.repeat(POSITIVE[2:-3], 4), np.tile([-1.5, 0.5, 2.0, 3.3], 10))
case("pow of a negative base", lambda x: x**2.0 + x**3.0, LINE)
case("pow of negative bases and run-time exponents", lax.pow, [-2.0, -1.5, -0.5, 2.0], [2.0, 3.0, -2.0, 0.0],
     gradient=False)  # fmt: skip
case(
    "pow of an integer exponent", lambda x, n: x**n, LINE[np.abs(LINE) > 0.1] / 4, i(14, low=-2, high=4), gradient=False
)
case("pow of integers", lambda x: x**3, i(8))
case("pow of integers at run time", lambda x, n: x**n, i(8), i(8, low=0, high=5))
case("pow at zero", lambda x: x**2.0 + x**1.5, [0.0, 1.0, 2.0])
case("sqrt of a square", lambda x: jnp.sqrt(x**2 + 1e-12), LINE)
PAIRS = np.array([[a, c] for a in (-7.5, -2, -0.5, 0, 0.5, 2, 7.5) for c in (-3.0, -0.5, 0.5, 2.0, 3.0)]).T
for _name in ("add", "sub", "mul", "div", "max", "min", "rem", "atan2"):
    case(_name, getattr(lax, _name), *PAIRS)
case("atan2 on the axes", lax.atan2, [0.0, 0, 1, -1, 2, -2, 0], [1.0, -1, 0, 0, 3, -3, 2], gradient=False)
case("ties of max and min", lambda x, y: (lax.max(x, y), lax.min(x, y)), [1.0, 2, 3, -1], [1.0, 1, 3, 0])
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(_name, getattr(lax, _name), *PAIRS)
    case(f"{_name} of integers", getattr(lax, _name), i(12, low=0, high=3), i(12, low=0, high=3))
    case(f"{_name} of bools", getattr(lax, _name), b(12), b(12))
case("nan is not equal", lambda x: (x == x, x != x, jnp.isnan(x), jnp.isinf(x)), [1.0, np.nan, np.inf, -np.inf])
case("nan_to_num", jnp.nan_to_num, [1.0, np.nan, np.inf, -np.inf], gradient=False)
case("clamp", lambda x: lax.clamp(-1.0, x, 1.0), LINE)
case("clamp by a number", lax.clamp, np.float32(-0.5), f(3, 4), f(), gradient=False)
case("clamp by arrays", lax.clamp, f(3, 4) - 1, f(3, 4), f(3, 4) + 1)
case("clamp of integers", lax.clamp, np.int32(-2), i(9), np.int32(3))
case("clip at its edges", lambda x: jnp.clip(x, -1, 1), [-2.0, -1, 0, 1, 2])
case("floor divide and mod", lambda x, y: (x // y, x % y), *PAIRS, gradient=False)
case("mod's gradient", lambda x, y: x % y, *PAIRS + 0.1)
case("divmod and fmod", lambda x, y: (*jnp.divmod(x, y), jnp.fmod(x, y), jnp.trunc(x)), *PAIRS, gradient=False)
case("square root of integers' sum", lambda n: jnp.sqrt(n.sum() * 1.0 + 100), i(4))
case("logaddexp", jnp.logaddexp, *PAIRS)
case("hypot", jnp.hypot, *PAIRS)
case("xlogy", lambda x, y: jax.scipy.special.xlogy(x, y), [0.0, 0.5, 2.0], [0.3, 1.5, 2.0])
case("xlog1py", lambda x, y: jax.scipy.special.xlog1py(x, y), [0.0, 0.5, 2.0], [0.3, 1.5, 2.0])
case("entr", jax.scipy.special.entr, [0.1, 0.5, 1.0, 2.0])
case("log_ndtr and ndtr", lambda x: jax.scipy.special.ndtr(x), LINE / 6)
case("ndtri", jax.scipy.special.ndtri, [0.01, 0.2, 0.5, 0.8, 0.99])
case("logit", jax.scipy.special.logit, [0.01, 0.2, 0.5, 0.8, 0.99])
case("betaln", jax.scipy.special.betaln, [0.5, 2.0, 3.3], [1.5, 2.0, 0.7])
case("sinc", jnp.sinc, [-1.5, -0.3, 0.0, 0.7, 2.2], gradient=False)
case("activations", lambda x: [g(x) for g in (jax.nn.relu, jax.nn.relu6, jax.nn.elu, jax.nn.selu, jax.nn.celu,
     jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jax.nn.log_sigmoid, jax.nn.leaky_relu, jax.nn.hard_tanh,
     jax.nn.hard_sigmoid, jax.nn.hard_swish, jax.nn.soft_sign, jax.nn.mish, jax.nn.squareplus, jax.nn.sparse_plus)],
     np.concatenate([LINE[1:-1], [6.0, -3.0]]))  # fmt: skip
case("glu", jax.nn.glu, f(3, 8))
case("standardize", jax.nn.standardize, f(3, 8))
case("where", jnp.where, b(3, 4), f(3, 4), f(4))
case(
    "select_n of three", lambda n, x, y, z: lax.select_n(n, x, y, z), i(3, 4, low=0, high=3), f(3, 4), f(3, 4), f(3, 4)
)
case("select_n of a scalar", lambda n, x, y: lax.select_n(n, x, y), np.bool_(True), f(3), f(3))
case("select of integers and bools", lambda c, x, y, p, q: (jnp.where(c, x, y), jnp.where(c, p, q)),
     b(6), i(6), i(6), b(6), b(6))  # fmt: skip

# Integers and bools.
for _name in ("and", "or", "xor"):
    case(f"bitwise {_name}", getattr(lax, f"bitwise_{_name}"), NUMBERS, OTHERS)
    case(f"logical {_name}", getattr(lax, f"bitwise_{_name}"), b(12), b(12))
    case(f"reduce_{_name}", lambda x, n=_name: getattr(lax, f"reduce_{n}")(x, (1,)), b(4, 3))
    case(f"reduce_{_name} of integers", lambda x, n=_name: getattr(lax, f"reduce_{n}")(x, (1,)), i(4, 3))
    case(f"bitwise {_name} with a known mask", lambda x, n=_name: getattr(lax, f"bitwise_{n}")(x, 0xFF), NUMBERS)
case("bitwise not", lax.bitwise_not, NUMBERS)
case("logical not", lax.bitwise_not, b(5))
for _name in ("shift_left", "shift_right_arithmetic", "shift_right_logical"):
    case(_name, getattr(lax, _name), NUMBERS, np.arange(16, dtype=np.int32) * 2)
    case(f"{_name} by 3", lambda x, n=_name: getattr(lax, n)(x, np.int32(3)), NUMBERS)
case("population_count", lax.population_count, NUMBERS)
case("clz", lax.clz, NUMBERS)
for _name in ("add", "sub", "mul", "max", "min"):
    case(f"{_name} of integers", getattr(lax, _name), NUMBERS[3:14], OTHERS[3:14] % 1000)
for _name in ("div", "rem"):
    case(f"{_name} of small integers", getattr(lax, _name), i(20, low=-50, high=50), np.where(i(20) == 0, 3, i(20) | 1))
    case(f"{_name} of large integers", getattr(lax, _name), NUMBERS, np.full(16, 7, np.int32))
case("floor division of integers", lambda x, y: (x // y, x % y), i(20, low=-50, high=50), i(20) | 1)
for _name in ("neg", "abs", "sign", "square"):
    case(f"{_name} of integers", getattr(lax, _name), i(9))
case("integer_pow of integers", lambda x: x**4, i(9))
case("max of bools", lambda x, y: (jnp.maximum(x, y), jnp.minimum(x, y), x + y, x * y), b(8), b(8))
for _name, _value in {"float": f(8) * 3, "int": i(8), "bool": b(8)}.items():
    for _dtype in (jnp.float32, jnp.int32, jnp.bool_, jnp.int8, jnp.uint8, jnp.bfloat16):
        if not (_name == "int" and _dtype == jnp.uint8) and not (_name == "float" and _dtype == jnp.uint8):
            case(f"convert {_name} to {jnp.dtype(_dtype).name}", lambda x, d=_dtype: x.astype(d).astype(jnp.float32),
                 _value, rtol=1e-2, gradient=_dtype != jnp.bfloat16)  # fmt: skip
case("convert a float to bool near zero", lambda x: x.astype(bool), [0.0, 0.3, -0.2, -0.0])
case("bool arithmetic in sums", lambda x: (x > 0).sum() + (x > 0).mean() + jnp.count_nonzero(x), f(9))
