"""Module: the named graphs of a program, and the parameters that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from converter.ir.analysis.verify import VerifyError, verify
from converter.ir.graph import Graph, Parameter


class Module(Mapping[str, Graph]):
    """Graphs by name, in an order. It does not change: every method returns another one.

    A parameter is shared by its name: wherever graphs have one of the same name, it is stored alike.
    """

    def __init__(self, graphs: Mapping[str, Graph] = MappingProxyType({})) -> None:
        self._graphs = dict(graphs)

    def __getitem__(self, name: str) -> Graph:
        return self._graphs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._graphs)

    def __len__(self) -> int:
        return len(self._graphs)

    def including(self, **graphs: Graph) -> Module:
        """Return the module with these graphs, after the others or in the place of those of their names."""
        return Module({**self._graphs, **graphs})

    def mapped(self, change: Callable[[str, Graph], Graph]) -> Module:
        """Return the module with each graph changed, `change(name, graph)`."""
        return Module({name: change(name, graph) for name, graph in self._graphs.items()})

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of all graphs by name."""
        return {p.name: p for graph in self._graphs.values() for p in graph.parameters.values()}


def verify_module(module: Module, after: str, unless: Mapping[str, Graph] = MappingProxyType({})) -> None:
    """Check each graph, and that they store what they share alike.

    Args:
        module: what a pass made.
        after: the name of the pass.
        unless: what there was before it: graphs that are still the same are not checked again.

    Raises:
        VerifyError: a graph is malformed, or a parameter is stored in two forms.
    """
    stored: dict[str, tuple[str, object]] = {}
    for name, graph in module.items():
        if unless.get(name) is not graph:
            verify(graph, f"{after}, in {name}")
        for value, parameter in graph.parameters.items():
            form = value.type, parameter.view
            if stored.setdefault(parameter.name, (name, form))[1] != form:
                raise VerifyError(f"{parameter.name} is stored otherwise in {stored[parameter.name][0]} than in {name}")
