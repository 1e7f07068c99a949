"""Synthetic data: random inputs and targets that any program takes."""

from __future__ import annotations

import numpy as np

from converter.program.manifest import Manifest, Signature, TensorSpec

#: Losses whose targets are -1 or 1.
SIGNED = ("hinge", "squared_hinge")


def synthetic_inputs(signature: Signature, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Numbers in 0..1 like pixels; ones for integers, as an index is small and a mask is open."""
    return {
        spec.name: rng.random(spec.shape, np.float32) if spec.dtype == "float32" else np.ones(spec.shape, spec.dtype)
        for spec in signature.taking("input")
    }


def synthetic_targets(manifest: Manifest, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets by name."""
    return {spec.name: synthetic_target(spec, manifest.losses.get(spec.name, ""), rng) for spec in manifest.targets}


def synthetic_target(spec: TensorSpec, loss: str, rng: np.random.Generator) -> np.ndarray:
    """What any loss takes: labels, one-hot rows, signs, or numbers in 0..1."""
    if loss in ("sparse_categorical_crossentropy", "next_token"):
        return rng.integers(0, 2, spec.shape, np.int32)
    if loss == "categorical_crossentropy":
        return np.eye(spec.shape[-1], dtype=np.float32)[rng.integers(0, spec.shape[-1], spec.shape[:-1])]
    if loss in SIGNED:
        return rng.choice(np.array([-1, 1], np.float32), spec.shape)
    return rng.random(spec.shape, np.float32) if spec.dtype == "float32" else np.zeros(spec.shape, spec.dtype)
