"""Memory of a session beside its arena: where each tensor of the state lies, and each gradient that is added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from converter.program.manifest import Manifest
from converter.tools.micro.entries import gradients, nbytes

#: Every tensor begins at a multiple of this.
_ALIGNMENT = 4


@dataclass(frozen=True)
class Memory:
    """Where tensors begin, and bytes of all of them."""

    state: tuple[int, ...]
    state_bytes: int
    gradients: tuple[int, ...]
    gradient_bytes: int


def memory_of(manifest: Manifest) -> Memory:
    """Return where a session keeps the state, and the gradients where a step is several calls."""
    state = _places([nbytes(tensor.shape, tensor.dtype) for tensor in manifest.state_tensors])
    sums = _places([nbytes(spec.shape, spec.dtype) for spec in gradients(manifest)])
    return Memory(*state, *sums)


def _places(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    starts, end = list[int](), 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return tuple(starts), end
