"""TFLite files as models: the inference file that an app ships already, read into a graph that trains."""

from converter.frontends.tflite.model import Model, independent_rows, is_tflite

__all__ = ["Model", "is_tflite", "rows_apart"]
