"""Element types: JAX's types that the IR supports, and how the others are narrowed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from converter.ir import BOOL, FLOAT32, INT32, TensorType
from converter.support.errors import NotImportable
from jax_frontend.keys import KEY, WORDS, is_key
from jax_frontend.unsupported import COMPLEX, RANDOM

#: What JAX calls the keys that a compiled program has.
KEYS = "pocketune"
#: Half precision, which is computed in float32.
HALVES = ("bfloat16", "float16")
#: Types whose stand-in computes the same or, for half precision, more precisely. float64 loses digits: TFLite has no
#: other. Integers are counts and places: those that need more than 31 bits are refused where they are known.
_NARROWED: dict[str, np.dtype] = {
    **dict.fromkeys(("float32", "float64", *HALVES), FLOAT32),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), INT32),
    "bool": BOOL,
}


def ir_dtype(dtype: Any) -> np.dtype:
    """Return the IR's element type for a JAX one. Raises NotImportable for types without a faithful stand-in."""
    name = str(dtype)
    if name == KEY:
        return INT32
    if name.startswith("complex"):
        raise NotImportable(COMPLEX)
    if name == f"key<{KEYS}>":
        return INT32  # a key is one number, see converter.ir.random_numbers
    if name.startswith("key<"):
        raise NotImportable(RANDOM)
    if name not in _NARROWED:
        raise NotImportable(
            f"element type {name}", "compute in float32, int32 or bool: cast the arrays before they enter the model"
        )
    return _NARROWED[name]


def is_bits(atom: Any) -> bool:
    """Return whether an operand of an equation holds no ordinary numbers: random keys, hash words, complex numbers."""
    name = str(getattr(atom.aval, "dtype", ""))
    return name not in _NARROWED or name.startswith("uint")


def ir_type(aval: Any) -> TensorType:
    """Return the IR's type for an abstract value of JAX. Raises NotImportable."""
    return TensorType((*aval.shape, WORDS) if is_key(aval) else tuple(aval.shape), ir_dtype(aval.dtype))


def narrow(array: Any) -> np.ndarray:
    """Return a concrete array (JAX, NumPy or a Python number) in the IR's element type. Raises NotImportable."""
    if is_key(array):
        array = jax.random.key_data(array)
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return np.asarray(array, ir_dtype(array.dtype))  # raises with the name of the type
    array = np.asarray(array)
    array = array.view(np.int32) if array.dtype == np.uint32 else array
    dtype = ir_dtype(array.dtype)
    if dtype == INT32 and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise NotImportable("integers beyond 32 bits", "use integers between -2147483648 and 2147483647")
    with np.errstate(over="ignore"):  # a float64 beyond float32 is an infinity
        return array.astype(dtype, copy=False)
