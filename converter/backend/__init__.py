"""TFLite level: lowering, rewriting, quantization, scheduling, memory planning, and the flatbuffer."""
