"""int8 for what is frozen: calibration, the choice of what becomes int8, the rewriting, and what it costs."""

from converter.quantize.choose import FrozenLayer
from converter.quantize.frozen import Quantized, quantize, quantize_plain
from converter.quantize.report import QuantizationReport, QuantizationWarning

__all__ = ["FrozenLayer", "QuantizationReport", "QuantizationWarning", "Quantized", "quantize", "quantize_plain"]
