"""Trained weights as PyTorch has them: tensors by the names of `state_dict()`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.program.file import ProgramFile
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


def state_dict(
    program: ProgramFile, state: Mapping[str, np.ndarray], base: Mapping[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Return the weights of a state as `module.load_state_dict` takes them, adapters merged.

    Args:
        program: what was trained.
        state: its tensors by name.
        base: the weights that low-rank adapters are merged into, arrays or tensors by name; None: those of the program.

    Raises:
        UsageError: PyTorch is not installed, the program does not hold the weights that its adapters change, or `base`
            does not.
    """
    # Here: a session that only trains does without the IR, 3 MB of Python's memory.
    from converter.program.merge import check_merges, weights_of_model, weights_on

    if base is not None:
        return as_tensors(weights_on({name: np.asarray(array) for name, array in base.items()}, program, state))
    check_merges(program)
    return as_tensors(weights_of_model(program, state))


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
