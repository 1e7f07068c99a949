"""Post-training quantization of frozen layers, and its loss; `backend/quantize/choose.py` chooses the layers."""

from converter.backend.quantize.choose import FrozenLayer
from converter.backend.quantize.kept import kept_as_int8
from converter.driver.quantization.frozen import NothingToQuantizeError, Quantized, quantize, quantize_plain, samples_of
from converter.driver.quantization.report import QuantizationReport, QuantizationWarning, compare

__all__ = [
    "FrozenLayer",
    "NothingToQuantizeError",
    "QuantizationReport",
    "QuantizationWarning",
    "Quantized",
    "compare",
    "kept_as_int8",
    "quantize",
    "quantize_plain",
    "samples_of",
]
