"""User-defined heads that read a tensor of a file: their parameters have names that no layer of the file has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from converter.frontends.source import Regularization, Source
from converter.ir import Graph
from converter.ir.batch_norm import BatchNorm

#: What the names of its parameters begin with.
PREFIX = "head/"


def with_names_of_head(source: Source) -> Source:
    """Return an imported model whose parameters are called `head/...`, in all that is known of them."""
    held = source.regularization
    return replace(
        source,
        graph=_named_graph(source.graph),
        blocks=None,
        batch_norms=[_named_norm(layer) for layer in source.batch_norms],
        regularization=Regularization(_named(held.penalties), _named(held.constraints)),
    )


def _called(name: str) -> str:
    return name if name.startswith(PREFIX) else PREFIX + name


def _named_graph(graph: Graph) -> Graph:
    after = graph.copy()
    after.parameters = {v: replace(p, name=_called(p.name)) for v, p in graph.parameters.items()}
    return after


def _named(of_parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {_called(name): what for name, what in of_parameters.items()}


def _named_norm(layer: BatchNorm) -> BatchNorm:
    return replace(
        layer,
        mean=_called(layer.mean),
        variance=_called(layer.variance),
        weights=[_called(name) for name in layer.weights],
        counter=None if layer.counter is None else _called(layer.counter),
    )
