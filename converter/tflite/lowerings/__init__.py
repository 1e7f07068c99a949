"""One lowering rule per semantic op, by subject; importing this package registers them."""

from converter.tflite.lowerings import (
    conv,
    conv_filter_grad,
    depthwise,
    elementwise,
    labels,
    linear,
    loop,
    movement,
    normalize,
    pool,
)

__all__ = ["conv", "conv_filter_grad", "depthwise", "elementwise", "labels", "linear", "movement", "normalize", "pool"]
