"""The manifest: what a training program says about itself."""

from converter.manifest.records import (
    FROZEN,
    GRADIENT,
    INFERENCE,
    INITIAL,
    MANIFEST,
    MAX_ELEMENTS,
    TARGET,
    Dtype,
    Manifest,
    ParameterSpec,
    Signature,
    StateTensor,
    TensorSpec,
    UpdateRow,
    gathered,
)

__all__ = [
    "FROZEN",
    "GRADIENT",
    "INFERENCE",
    "INITIAL",
    "MANIFEST",
    "MAX_ELEMENTS",
    "TARGET",
    "Dtype",
    "Manifest",
    "ParameterSpec",
    "Signature",
    "StateTensor",
    "TensorSpec",
    "UpdateRow",
    "gathered",
]
