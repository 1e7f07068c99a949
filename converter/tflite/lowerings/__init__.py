"""One lowering rule per semantic op, by subject; importing this package registers them."""

from converter.tflite.lowerings import conv, elementwise, linear, movement, normalize, pool

__all__ = ["conv", "elementwise", "linear", "movement", "normalize", "pool"]
