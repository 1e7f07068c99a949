"""Layout assignment, from candidates to a graph: taken only where less is moved."""

from __future__ import annotations

from functools import cached_property, partial

from converter.ir import Graph, dependents
from converter.ir.rewrite import map_bodies
from converter.passes.fold_constants import fold_constants
from converter.passes.idioms.recognize import recognize_idioms
from converter.passes.layout.candidates import Candidates, candidates_of
from converter.passes.layout.choose import choices
from converter.passes.layout.emit import applied
from converter.passes.layout.moves import Bounds
from converter.passes.layout.views import Views, moves_data, views_of


def assign_layouts(graph: Graph, matrices: bool = False) -> Graph:
    """Return a graph that moves fewer elements: each node works in the layout in which its neighbours do.

    Before: Conv2D -> Transpose(NHWC to NCHW) -> Relu -> Transpose(back) -> Conv2D.   After: Conv2D -> Relu -> Conv2D.

    Inputs, outputs and parameters keep their form: what is left of the transposes stands after and before them. What
    has the rows of the batch, which is the first axis of the first input, one after the other keeps them so. A graph
    in which no fewer elements would be moved is returned as it is. Sums may be taken in another order.

    Args:
        graph: any.
        matrices: whether rows and columns of matrices keep the order that the model has.
    """
    rows = graph.inputs[0].shape[0] if graph.inputs and graph.inputs[0].shape else 1
    return _assigned(graph, rows, matrices)


def _assigned(graph: Graph, rows: int, matrices: bool) -> Graph:
    inside = map_bodies(graph, partial(_assigned, rows=rows, matrices=matrices))
    laid = _Laid(inside, rows, matrices)
    while laid.moved and (better := min(laid.others(), key=_Laid.measure)).measure() < laid.measure():
        laid = better
    return inside if laid.graph is inside else recognize_idioms(laid.graph)


class _Laid:
    """A graph, and what in it could lie otherwise."""

    def __init__(self, graph: Graph, rows: int, matrices: bool) -> None:
        self.graph = graph
        self._kept = rows, matrices
        self.moved = moved_elements(graph)

    def measure(self) -> tuple[int, int]:
        """Return how many elements are moved, and how many nodes do not work as the convolutions near them."""
        return self.moved, len(self._found.spatial)

    def others(self) -> list[_Laid]:
        """Return the same in other layouts."""
        graph, views, found = self.graph, self._views, self._found
        chosen = choices(graph, views, found)
        return [
            _Laid(fold_constants(applied(graph, views, found.nodes, transposed)), *self._kept) for transposed in chosen
        ]

    @cached_property
    def _views(self) -> Views:
        return views_of(self.graph)

    @cached_property
    def _found(self) -> Candidates:
        bounds = Bounds(dependents(self.graph, self.graph.inputs), *self._kept)
        return candidates_of(self.graph, self._views, bounds)


def moved_elements(graph: Graph) -> int:
    """Return how many elements of what depends on the inputs transposes move."""
    fed = dependents(graph, graph.inputs)
    return sum(node.output.type.size for node in graph.nodes if moves_data(node) and node.output in fed)
