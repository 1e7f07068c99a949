"""Memory of a session beside its arena: positions of the state tensors and of accumulated gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from converter.program.manifest import Manifest
from converter.tools.micro.entries import features, gradients, nbytes

#: Every tensor begins at a multiple of this.
_ALIGNMENT = 4


@dataclass(frozen=True)
class Memory:
    """Where tensors begin, and bytes of all of them; features are those of one row."""

    state: tuple[int, ...]
    state_bytes: int
    gradients: tuple[int, ...]
    gradient_bytes: int
    features: tuple[int, ...]
    feature_bytes: int


def memory_of(manifest: Manifest) -> Memory:
    """Return where a session keeps the state, gradients where a step is several calls, and features."""
    state = _places([nbytes(tensor.shape, tensor.dtype) for tensor in manifest.state_tensors])
    sums = _places([nbytes(spec.shape, spec.dtype) for spec in gradients(manifest)])
    kept = _places([nbytes(spec.shape[1:], spec.dtype) for spec in features(manifest)])
    return Memory(*state, *sums, *kept)


def _places(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    starts, end = list[int](), 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return tuple(starts), end
