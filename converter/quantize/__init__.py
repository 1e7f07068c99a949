"""int8 for what is frozen: calibration, the choice of what becomes int8, the rewriting, and what it costs."""

from converter.quantize.choose import FrozenLayer
from converter.quantize.frozen import NothingToQuantizeError, Quantized, quantize, quantize_plain
from converter.quantize.kept import kept_as_int8
from converter.quantize.report import QuantizationReport, QuantizationWarning

__all__ = [
    "FrozenLayer",
    "NothingToQuantizeError",
    "QuantizationReport",
    "QuantizationWarning",
    "Quantized",
    "kept_as_int8",
    "quantize",
    "quantize_plain",
]
