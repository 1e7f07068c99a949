"""reduce_window_* -> pooling over NHWC."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.ir import Value, ops
from jax_frontend.registry import Call, NotImportable, Result, rule


def _pooling(name: str, pool: type[ops.MaxPool2D] | type[ops.SumPool2D], negated: bool = False) -> None:
    @rule(name)
    def apply(call: Call, x: Value) -> Result:
        """Windows over one or two axes, wherever they stand."""
        p, b = call.params, call.b
        window, strides, dilation, spread = (
            tuple(int(n) for n in p[k])
            for k in ("window_dimensions", "window_strides", "window_dilation", "base_dilation")
        )
        padding = [(int(low), int(high)) for low, high in p["padding"]]
        if any(n != 1 for n in dilation + spread):
            raise NotImportable("pooling with dilation", "use undilated windows")
        axes = [a for a in range(len(window)) if (window[a], strides[a], padding[a]) != (1, 1, (0, 0))]
        if len(axes) > 2:
            raise NotImportable("pooling over more than two axes", "pool over two axes, then over the others")
        if min(min(pair) for pair in padding) < 0:
            raise NotImportable("pooling with negative padding", "slice the input first")
        rest = [a for a in range(len(window)) if a not in axes]
        channels = rest[-1:] if len(rest) > 1 or not rest else []
        outer = [a for a in rest if a not in channels]
        perm = (*outer, *axes, *channels)
        moved = b.transpose(x, perm)
        spatial = (1,) * (2 - len(axes)) + tuple(x.shape[a] for a in axes)
        image = b.reshape(moved, (prod(x.shape[a] for a in outer), *spatial, prod(x.shape[a] for a in channels)))
        pairs = [(window[a], strides[a], padding[a]) for a in axes]
        pairs = [(1, 1, (0, 0))] * (2 - len(axes)) + pairs
        sizes, steps, pads = zip(*pairs, strict=True)
        image = b(ops.Neg(), image) if negated else image
        y = b(pool(sizes, steps, pads), image)
        y = b(ops.Neg(), y) if negated else y
        back = tuple(int(i) for i in np.argsort(perm))
        return b.transpose(b.reshape(y, tuple(call.output.shape[a] for a in perm)), back)


_pooling("reduce_window_max", ops.MaxPool2D)
_pooling("reduce_window_min", ops.MaxPool2D, negated=True)
_pooling("reduce_window_sum", ops.SumPool2D)
