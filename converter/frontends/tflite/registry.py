"""What an import rule is given: one operator of the file, its operands, and the builder of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from converter.frontends.tflite.reading.file import FileOperator, FileTensor
from converter.ir import Builder, Graph, Shape, Value
from converter.support.errors import NotImportable
from converter.support.registry import Registry

#: What a rule returns: the output, or the outputs in order.
Result = Value | Sequence[Value]


class OneRowOnly(NotImportable):
    """An operator that is for one row at a time: the runtime could compute it, but not for a batch.

    Args:
        what: in words.
        advice: what the user can do beside training with batch=1.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        also = f", or {advice}" if advice else ""
        super().__init__(
            f"{what}: the file is for one row at a time there", f"train with batch=1 or micro_batch=1{also}"
        )


def streams(kind: str) -> tuple[str, str]:
    """Return what is said of an operator of a net that streams, and what to do."""
    advice = (
        "the file streams, and goes on to do so as it is. Train the net of whole windows from which it was made, or "
        "cut the model before what streams (cut=)"
    )
    return f"{kind}, which keeps a state from one call to the next: rows of a batch would not stand alone", advice


class Bodies(Protocol):
    """Subgraphs by number, as an importer reads them."""

    def inline(self, number: int, values: Sequence[Value]) -> list[Value]:
        """Return what a subgraph makes of operands, in the graph of the call."""
        ...

    def graph(
        self, number: int, values: Sequence[Value], order: Sequence[int], fixed: Sequence[int]
    ) -> tuple[Graph, list[Value]]:
        """Return a subgraph as a graph of its own, and the weights that it takes before its operands.

        Args:
            number: of the subgraph.
            values: what it is given.
            order: of the graph's operands and results.
            fixed: which are the same in each step: what is known of these, the graph knows.
        """
        ...

    def handed_on(self, number: int) -> list[int]:
        """Return which operands a subgraph gives as they are, in the same places."""
        ...


@dataclass(frozen=True)
class Call:
    """One operator as its rule sees it.

    Attributes:
        b: the builder.
        operator: the operator.
        types: the tensors that the file says its results are.
        rows: the batch: an axis of one row in the file may be of so many.
        given: the shapes that the file says its operands have.
        bodies: the subgraphs that operators run.
    """

    b: Builder
    operator: FileOperator
    types: Sequence[FileTensor]
    rows: int
    given: Sequence[Shape] = ()
    bodies: Bodies = None  # type: ignore[assignment]

    def is_batch(self, place: int, x: Value, axis: int = 0) -> bool:
        """Return whether an axis of an operand is one row in the file, and the rows of the batch here."""
        given = self.given[place]
        return axis < len(given) and given[axis] == 1 and x.shape[axis] == self.rows

    def option(self, name: str, default: Any = 0) -> Any:
        """Return a field of the options table, or its default."""
        return self.operator.options.get(name, default)

    def known(self, value: Value, what: str) -> np.ndarray:
        """Return a constant operand. Raise NotImportable where it is computed."""
        array = self.b.graph.constants.get(value)
        if array is None:
            raise NotImportable(f"{self.operator.kind} with computed {what}", "fix the shapes of the inputs (shapes=)")
        return array


class Rules(Registry[str, Callable[..., Result]]):
    """The rules of one subject; its call is a decorator: `@rule("CONV_2D")`."""

    def __call__(self, *kinds: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
        """Add the decorated function, `function(call, *values)`, for some builtins."""

        def register(function: Callable[..., Result]) -> Callable[..., Result]:
            for kind in kinds:
                self.add(kind, function)
            return function

        return register
