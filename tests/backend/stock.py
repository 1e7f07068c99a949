"""Runs emitted bytes in the stock interpreters, for the tests of emission."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert import interpreter as litert

from converter.backend.emit.emit import Subgraph, emit
from converter.ir import Builder, Graph, Op, TensorType


def interpreter(model: bytes, xnnpack: bool, runtime: Any = litert, resolvers: Any = litert.OpResolverType) -> Any:
    """An interpreter with one thread, with XNNPACK or with the builtin kernels alone."""
    resolver = resolvers.AUTO if xnnpack else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return runtime.Interpreter(model_content=model, experimental_op_resolver_type=resolver, num_threads=1)


def run(model: bytes, feed: dict[str, np.ndarray], xnnpack: bool, signature: str = "main") -> dict[str, np.ndarray]:
    """Calls one signature once."""
    return interpreter(model, xnnpack).get_signature_runner(signature)(**feed)


def one_op(op: Op, *arrays: np.ndarray, constants: tuple[int, ...] = ()) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph that applies an op to arrays, fed or (those at the positions `constants`) constant; and its feed."""
    b, feed = Builder(), {}
    operands = []
    for i, array in enumerate(arrays):
        if i in constants:
            operands.append(b.constant(array))
        else:
            operands.append(b.input(f"x{i}", TensorType(array.shape, array.dtype)))
            feed[f"x{i}"] = array
    b.graph.outputs = {f"y{i}": value for i, value in enumerate(b.node(op, *operands).outputs)}
    return b.graph, feed


def file(graph: Graph, **metadata: bytes) -> bytes:
    """A file with one signature, `main`."""
    return emit([Subgraph("main", graph)], metadata, "test")
