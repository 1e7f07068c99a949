"""A `.tflite` file as bytes: its schema, tables, buffers and metadata."""
