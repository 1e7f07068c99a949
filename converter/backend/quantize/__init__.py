"""Quantization of lowered layers: `choose.py` decides which become int8, `prefix.py` and `dynamic.py` make them."""
