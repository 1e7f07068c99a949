"""Lowering rules, one for each semantic op, by subject; `converter.tflite.lowering.lower` joins their tables."""
