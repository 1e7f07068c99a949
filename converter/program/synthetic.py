"""Synthetic data: random inputs and targets that any program takes."""

from __future__ import annotations

import numpy as np

from converter.program.manifest import Manifest, Signature, TargetLabels, TensorSpec


def synthetic_inputs(signature: Signature, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return numbers in 0..1 like pixels; ones for integers, as an index is small and a mask is open."""
    return {
        spec.name: rng.random(spec.shape, np.float32) if spec.dtype == "float32" else np.ones(spec.shape, spec.dtype)
        for spec in signature.taking("input")
    }


def synthetic_targets(manifest: Manifest, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets by name."""
    return {spec.name: synthetic_target(spec, manifest, rng) for spec in manifest.targets}


def synthetic_target(spec: TensorSpec, manifest: Manifest, rng: np.random.Generator) -> np.ndarray:
    """Return what its loss takes: labels, one-hot rows, one of few numbers, or numbers in 0..1 or from the least on."""
    known = manifest.target_labels.get(spec.name, TargetLabels())
    if spec.dtype != "float32":
        # The labels of a `ctc` are a sequence, which must have room among the outputs.
        labels = 1 if known.count is None or manifest.losses.get(spec.name) == "ctc" else min(2, known.count)
        return rng.integers(0, labels, spec.shape).astype(spec.dtype)
    if known.only:
        return rng.choice(np.array(known.only, np.float32), spec.shape)
    if known.count is not None:
        return np.eye(known.count, dtype=np.float32)[rng.integers(0, known.count, spec.shape[:-1])]
    least = 0.0 if known.least is None else known.least
    most = least + 1 if known.most is None else known.most
    return (least + (most - least) * rng.random(spec.shape)).astype(np.float32)
