"""Tensors of PyTorch as arrays of the types that programs have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from converter.support.errors import NotImportable

_CONVERSIONS = ("_to_copy", "to", "type_as")
#: Operators whose results may lie beyond the range of their operands' type.
_BEYOND = ("__lshift__", "add", "bitwise_left_shift", "bitwise_not", "mul", "neg", "pow", "rsub", "square", "sub")
_GROWING = ("__lshift__", "bitwise_left_shift", "cumprod", "pow", "prod")
#: Factors from which on a product with an index is likely a hash of it.
_LARGE = 1 << 10


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return the numbers of a tensor in the types that programs have: float32, int32, bool.

    Raises:
        NotImportable: complex numbers, or integers beyond 32 bits.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        raise NotImportable("complex numbers", "compute with real and imaginary parts")
    if tensor.is_floating_point():
        return tensor.to(torch.float32).cpu().contiguous().numpy()
    if tensor.dtype == torch.bool:
        return tensor.cpu().numpy()
    if tensor.dtype == torch.int64 and tensor.numel():
        least, most = int(tensor.min()), int(tensor.max())
        if least < -(2**31) or most >= 2**31:
            raise NotImportable("whole numbers of more than 32 bits", "use smaller ones")
    return tensor.to(torch.int32).cpu().contiguous().numpy()


def type_of(dtype: torch.dtype) -> np.dtype:
    """Return the element type that stands for one of PyTorch. Raise NotImportable where none does."""
    if dtype.is_complex:
        raise NotImportable("complex numbers", "compute with real and imaginary parts")
    if dtype.is_floating_point:
        return np.dtype(np.float32)
    return np.dtype(np.bool_) if dtype == torch.bool else np.dtype(np.int32)


def check_range(node: Any, name: str, dtype: torch.dtype) -> None:
    """Raise NotImportable where an operator computes in integers of 8 or 16 bits, which wrap around; here none do.

    Args:
        node: of an exported graph.
        name: of its operator.
        dtype: of its result.
    """
    kind = str(dtype).removeprefix("torch.")
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or torch.iinfo(dtype).bits > 16:
        return
    if name in _BEYOND:
        raise NotImportable(f"arithmetic in {kind}, which wraps around", "convert it before, x.int() or x.float()")
    if name in _CONVERSIONS and not _holds(dtype, node.args[0].meta["val"].dtype):
        raise NotImportable(
            f"a conversion to {kind}, which wraps around", "stay in int32 or float32, by x.clamp(0, 255) for one"
        )


def said_of_types(node: Any, name: str, dtype: torch.dtype) -> str:
    """Return what is to be said of an operator that PyTorch computes in numbers of another type; empty for most.

    Args:
        node: of an exported graph.
        name: of its operator.
        dtype: of its result.
    """
    if dtype in (torch.float16, torch.bfloat16) and name in _CONVERSIONS and node.args[0].meta["val"].dtype != dtype:
        return f"{str(dtype).removeprefix('torch.')} in the model: the program computes in float32, which rounds less"
    numbers = [abs(a) for a in node.args if isinstance(a, int)]
    if dtype == torch.int64 and (name in _GROWING or (name == "mul" and max(numbers, default=0) >= _LARGE)):
        return "int64 in the model: the program computes in int32, which wraps around beyond 2147483647"
    return ""


def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a type of integers has all numbers of another type."""
    if other == torch.bool:
        return True
    if other.is_floating_point or other.is_complex:
        return False
    least, most = torch.iinfo(other).min, torch.iinfo(other).max
    return torch.iinfo(dtype).min <= least and most <= torch.iinfo(dtype).max
