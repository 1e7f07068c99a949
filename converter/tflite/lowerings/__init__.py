"""One lowering rule per semantic op, by subject; `converter.tflite.lower` joins their tables."""
