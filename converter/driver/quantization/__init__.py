"""Post-training quantization of frozen layers, and what it costs; `tflite/quantize/choose.py` decides of which."""

from converter.driver.quantization.frozen import NothingToQuantizeError, Quantized, quantize, quantize_plain, samples_of
from converter.driver.quantization.report import QuantizationReport, QuantizationWarning, compare
from converter.tflite.quantize.choose import FrozenLayer
from converter.tflite.quantize.kept import kept_as_int8

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
