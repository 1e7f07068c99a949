"""The TFLite level: lowering, fusion, export of the state, and the flatbuffer."""
