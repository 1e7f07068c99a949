"""Trained weights as PyTorch has them: tensors by the names of `state_dict()`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from converter.support.extras import require

if TYPE_CHECKING:
    import torch

#: What the numbers of batches of batch normalization layers are called; a program holds them as it holds weights.
_COUNTER = "num_batches_tracked"


def whole_counters(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights by name in which numbers of batches are whole numbers, [] int64, as in PyTorch."""
    return {
        name: array.round().astype(np.int64).reshape(()) if name.rpartition(".")[2] == _COUNTER else array
        for name, array in weights.items()
    }


def as_tensors(weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return weights as tensors that `module.load_state_dict` takes.

    Raises:
        UsageError: PyTorch is not installed.
    """
    require("torch", "a state_dict")
    import torch

    return {name: torch.from_numpy(np.array(array)) for name, array in whole_counters(weights).items()}


def pt_file(weights: Mapping[str, np.ndarray]) -> bytes:
    """Return a file of these tensors as `torch.save` writes it, which `torch.load` reads with `weights_only=True`.

    Raises:
        UsageError: PyTorch is not installed.
    """
    tensors, file = as_tensors(weights), io.BytesIO()
    import torch

    torch.save(tensors, file)
    return file.getvalue()
