"""Frozen weights that are stored in fewer bits."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids, reshaped
from converter.ir import FLOAT16, FLOAT32, INT4, INT8, UNSCALED, Node, Quantization, Value
from converter.ir.rewrite import Rewriter


def _known(b: Rewriter, value: Value) -> np.ndarray:
    """The numbers of what is a constant."""
    array = b.array(value)
    assert array is not None
    return array


def _is_cast_of(b: Rewriter, node: Node, *dtypes: np.dtype) -> bool:
    """Whether a node unpacks a constant of one of these types."""
    weight = node.inputs[0] if isinstance(node.op, tfl.CastWeight) else None
    return weight is not None and weight.dtype in dtypes and b.array(weight) is not None


def _unpacked(b: Rewriter, w: Value) -> Value:
    """The same by DEQUANTIZE of one matrix, the shape in which both engines read it right."""
    shape = (1, *w.shape)
    made = b(tfl.UnpackedWeight(), b.quantized(_known(b, w).reshape(shape), UNSCALED, w.name))
    return reshaped(b, made, w.shape)


@avoids(
    "cast-of-integers",
    "GPU: CAST of a constant: refused (Expected 1 runtime input tensor(s), but node has 0 runtime input(s)). Hexagon: "
    "of int8 refused, of int4 [64,128]: wrong, errors of 37. Both: DEQUANTIZE of it as [1,64,128] with scale 1: right",
    lambda b, node: _is_cast_of(b, node, INT4, INT8),
)
def dequantized(b: Rewriter, node: Node) -> Value:
    """DEQUANTIZE, which the interpreter does once when it loads the program, and engines when they run."""
    return _unpacked(b, node.inputs[0])


@avoids(
    "cast-of-floats",
    "GPU: CAST of a constant float16 [2,3]: refused (Expected 1 runtime input tensor(s), but node has 0 runtime "
    "input(s)), DEQUANTIZE of it behind a RESHAPE too",
    lambda b, node: _is_cast_of(b, node, FLOAT16, FLOAT32),
)
def in_float32(b: Rewriter, node: Node) -> Value:
    """The constant in float32: scales are few."""
    return b.constant(np.asarray(_known(b, node.inputs[0]), FLOAT32), name=node.inputs[0].name)


@avoids(
    "lookup-of-one-scale",
    "GPU: EMBEDDING_LOOKUP in a table of int8 or int4 [64,128] with one scale: zeros; with a scale for each row: right",
    lambda b, node: isinstance(node.op, tfl.EmbeddingLookup) and node.inputs[1].type.quantization == UNSCALED,
)
def of_a_scale_for_each_row(b: Rewriter, node: Node) -> Value:
    """The same table with ones."""
    indices, table = node.inputs
    ones = Quantization((1.0,) * table.shape[0])
    return b(tfl.EmbeddingLookup(), indices, b.quantized(_known(b, table), ones, table.name))


@avoids(
    "lookup-of-integers",
    "Hexagon: EMBEDDING_LOOKUP in a table of int8 or int4: refused (not supported in Qualcomm Compiler); GATHER in "
    "what DEQUANTIZE makes of it: right",
    lambda b, node: isinstance(node.op, tfl.EmbeddingLookup),
)
def gathered(b: Rewriter, node: Node) -> Value:
    """Rows of the whole table in float32."""
    indices, table = node.inputs
    return b(tfl.Gather(), _unpacked(b, table), indices)
