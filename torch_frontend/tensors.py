"""Tensors of PyTorch as arrays of the types that programs have."""

from __future__ import annotations

import numpy as np
import torch

from jax_frontend.unsupported import NotImportable


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
