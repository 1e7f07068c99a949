"""Import rules by subject; `converter.frontends.tflite.importer` joins their tables."""
