"""Static quantization of the frozen first layers: the same graph for every signature."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.backend.peephole.wide_pixels import with_wide_int8
from converter.backend.quantize.calibrate import ranges
from converter.backend.quantize.choose import FrozenLayer, choose, is_dense, macs, pays_dynamic_range
from converter.backend.quantize.rewrite import to_int8
from converter.backend.targets import Target
from converter.ir import Graph


def quantize_prefix(
    prefix: Graph, rows: Mapping[str, np.ndarray], batch: int, target: Target
) -> tuple[Graph, tuple[FrozenLayer, ...]]:
    """Return the lowered prefix with int8 wherever it pays on the target.

    Args:
        prefix: lowered and fused, without parameters.
        rows: calibration samples by input name.
        batch: rows that the prefix takes at once.
        target: whose table decides.

    Returns:
        The prefix, with the inputs and float32 outputs that it had, and what became of each of its layers.
    """
    chosen, why = choose(prefix, target)
    if chosen and not target.is_micro:  # kernels of microcontrollers take a pixel's channels one by one
        prefix = with_wide_int8(prefix, target, {value for node in chosen for value in node.outputs})
        chosen, why = choose(prefix, target)
    dense = {
        n
        for n in prefix.nodes
        if n not in chosen
        and is_dense(prefix, n)
        and pays_dynamic_range("fully_connected", macs(n), n.inputs[0].type, target)
    }
    layers = []
    for node in prefix.nodes:
        if not node.op.int8_weights:
            continue
        layer, code = node.origin.layer, node.op.code
        if node in chosen:
            layers.append(FrozenLayer(layer, code, "int8", "weights and activations"))
        elif node in dense:
            layers.append(FrozenLayer(layer, code, "dynamic range", "weights"))
        else:
            layers.append(FrozenLayer(layer, code, "float32", why[node]))
    touched = (v for n in prefix.nodes if n in chosen for v in (*n.inputs, *n.outputs))
    seen = ranges(prefix, (v for v in touched if v not in prefix.constants), rows, batch) if chosen else {}
    # A layer that became several operators is one.
    return to_int8(prefix, chosen, dense, seen), tuple(dict.fromkeys(layers))
