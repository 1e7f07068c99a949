"""Abstract weights, of which only the type is known: a model's cost is planned without making its numbers.

A described tensor is an ordinary array that takes no room: one number, repeated by strides of zero. The number is a NaN
that no arithmetic makes. Its payload says which tensor it belongs to: views of it, which NumPy makes of the same one
number, stay described, and two tensors are not taken for one. Of numbers that float16 has the payload is even.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from converter.ir.op import Op
from converter.ir.types import FLOAT32, Shape, TensorType

_NAN = 0x7FC00000
#: The bits of a NaN that arithmetic leaves alone; a NaN of a computation has none of them set.
_PAYLOAD = 0x003FFFFF


def described(shape: Shape, what: str, of_float16: bool = False) -> np.ndarray:
    """Return a float32 tensor without numbers; `what` says which: of equal ones, all that is computed is equal too.

    `of_float16`: whether float16 has all of its numbers.
    """
    payload = 2 * (crc32(what.encode()) % (_PAYLOAD // 2)) + 1 + of_float16
    return np.broadcast_to(np.array(_NAN | payload, np.uint32).view(FLOAT32), shape)


def described_integers(shape: Shape, dtype: np.dtype, what: str) -> np.ndarray:
    """Return a tensor [..., B] of whole numbers that say nothing: B of them, which `what` decides, in each row."""
    row = np.random.default_rng(crc32(what.encode())).integers(-7, 8, shape[-1]).astype(dtype)
    return np.broadcast_to(row, shape)


def is_described(array: np.ndarray) -> bool:
    """Return whether the numbers of a tensor are not known."""
    return array.dtype == FLOAT32 and array.size > 0 and _payload(array) != 0


def is_of_float16(array: np.ndarray) -> bool:
    """Return whether float16 represents the numbers of a described tensor exactly."""
    return not _payload(array) % 2


def known_result(op: Op, type: TensorType, *operands: np.ndarray) -> np.ndarray | None:
    """Return what an op makes of constants; of a described one a described tensor, and None where that is not float32.

    What leaves the range of float32 is infinite then, as it is where the program runs.
    """
    if not any(map(is_described, operands)):
        with np.errstate(all="ignore"):
            result = op.evaluate(*operands)
        return result[0] if isinstance(result, tuple) else result
    if type.dtype != FLOAT32:
        return None
    if op.keeps_data:
        return operands[0].reshape(type.shape)
    halves = op.moves_data and all(is_described(a) and is_of_float16(a) for a in operands)
    return described(type.shape, " ".join([str(op), *(f"{a.shape} {fingerprint(a)}" for a in operands)]), halves)


def fingerprint(array: np.ndarray) -> int:
    """Return a checksum of the content; what is described has one of its own."""
    if is_described(array):
        return _payload(array)
    differs = tuple(slice(None if step else 1) for step in array.strides)
    return crc32(np.ascontiguousarray(array[differs]).view(np.uint8).data)


def _payload(array: np.ndarray) -> int:
    """Return which tensor it is; 0 for one with numbers."""
    bits = int(array[(0,) * array.ndim].view(np.uint32))
    return bits & _PAYLOAD if bits & _NAN == _NAN else 0


def is_uniform(array: np.ndarray) -> bool:
    """Return whether one number, which is known, stands for all elements of a tensor worth the trouble."""
    if array.size <= 64 or is_described(array):
        return False
    first = array.flat[0]
    return not any(array.strides) or bool(array.flat[-1] == first and (array == first).all())
