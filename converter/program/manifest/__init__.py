"""The manifest: what a training program says about itself."""

from converter.program.manifest.certificates import Certificate, CertificateFailure
from converter.program.manifest.identity import FrozenWeight, Identity, ModelTensor
from converter.program.manifest.labels import TargetLabels
from converter.program.manifest.names import INFER, at_length, rows_to_infer
from converter.program.manifest.reading import manifest_of_bytes, manifest_of_json
from converter.program.manifest.records import (
    FISHER,
    FROZEN,
    GRADIENT,
    INFERENCE,
    INITIAL,
    LOSS_OF_STEP,
    MANIFEST,
    MASK,
    ROW_LOSSES,
    TARGET,
    ChosenChannels,
    ClassHead,
    Dtype,
    Manifest,
    RunningRate,
    Signature,
    StateTensor,
    TensorSpec,
    UpdateRow,
    gathered,
)
from converter.program.manifest.weights import FrozenPart, ParameterSpec, Piece, Scales, StoredDtype

__all__ = [
    "FISHER",
    "FROZEN",
    "GRADIENT",
    "INFER",
    "LOSS_OF_STEP",
    "INFERENCE",
    "INITIAL",
    "MANIFEST",
    "MASK",
    "ROW_LOSSES",
    "TARGET",
    "Certificate",
    "ChosenChannels",
    "ClassHead",
    "Dtype",
    "CertificateFailure",
    "FrozenPart",
    "FrozenWeight",
    "Identity",
    "Manifest",
    "ModelTensor",
    "ParameterSpec",
    "Piece",
    "RunningRate",
    "Scales",
    "Signature",
    "StateTensor",
    "StoredDtype",
    "TargetLabels",
    "TensorSpec",
    "UpdateRow",
    "at_length",
    "gathered",
    "manifest_of_bytes",
    "manifest_of_json",
    "rows_to_infer",
]
