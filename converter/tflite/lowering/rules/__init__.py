"""One lowering rule per semantic op, by subject; `converter.tflite.lowering.lower` joins their tables."""
