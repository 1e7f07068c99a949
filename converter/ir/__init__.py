"""Intermediate representation (IR): one graph class for semantic ops and for TFLite's builtins."""

from converter.ir.analysis.verify import VerifyError, verify
from converter.ir.builder import Builder
from converter.ir.described import described, described_integers, fingerprint, is_described, known_result
from converter.ir.evaluate import evaluate, evaluate_values
from converter.ir.graph import Graph, Node, Parameter, Value, dependents, in_order_of_use, nested, reachable
from converter.ir.graph_builder import GraphBuilder
from converter.ir.guarded import guarded
from converter.ir.interface import Interface
from converter.ir.lazy import LazyArray, StoredIntegers, Unread
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.quantization import INT8, UNSCALED, Quantization
from converter.ir.types import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT4,
    INT32,
    Origin,
    Shape,
    TensorType,
    rows_at_once,
    stored_bytes,
)
from converter.ir.view import View
