"""Interpreter runs of lowered graphs: what one gives for any number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from converter.backend.emit.emit import Subgraph, emit
from converter.ir import Graph
from converter.support.litert import Interpreter


def batches(rows: Mapping[str, np.ndarray], size: int) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Batches of `size` rows and how many of them count: the last one is filled with its last row."""
    count = len(next(iter(rows.values())))
    for start in range(0, count, size):
        indices = np.minimum(np.arange(start, start + size), count - 1)
        yield {name: array[indices] for name, array in rows.items()}, min(size, count - start)


class StockRunner:
    """A graph without state, ready to be called."""

    def __init__(self, graph: Graph) -> None:
        constant = graph.copy()
        constant.constants |= {v: p.value.reshape(v.shape) for v, p in graph.parameters.items()}
        constant.parameters = {}
        self._interpreter = Interpreter(model_content=emit([Subgraph("run", constant)], {}, "calibration"))
        self._run = self._interpreter.get_signature_runner("run")

    def __call__(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        return self._run(**feed)
