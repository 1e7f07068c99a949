"""Import rules by subject; `tflite_frontend.importer` joins their tables."""
