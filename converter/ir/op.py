"""The base class of all operators, of both levels (semantic and `tflite.*`)."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from converter.ir.extent import Extent, Pole, one_of
from converter.ir.row_dependence import Rows, together
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Graph, Value

#: All operands of an op, however many it has (`Op.linear_in`).
ALL_OPERANDS: Container[int] = range(2**31)
#: A cotangent that is built only if something wants it; None where nothing flows (integers, comparisons).
Cotangent = Callable[[], "Value"] | None


class ShapeError(ValueError):
    """The operands of an op do not fit each other. The message names the op, the operands and the rule."""


@dataclass(frozen=True)
class Cost:
    """What one execution costs: floating point operations, and bytes read and written."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True)
class Op:
    """An operator: a frozen dataclass whose fields are its attributes. All that is known of it is in its class."""

    #: Whether each element of the result is computed from those at its place, the operands repeated as NumPy does.
    elementwise: ClassVar[bool] = False
    #: Whether parts of the operands along an axis, on which no two places meet (`batch_rows`), make that part of the
    #: result, by the same op (of another `shape`, where it has one).
    in_parts: ClassVar[bool] = False
    #: Whether it is a sum of products of two operands' elements: a matrix product or a convolution.
    contracts: ClassVar[bool] = False
    #: Whether what it makes of known operands is known: nothing is drawn, and nothing else happens in a step.
    folds: ClassVar[bool] = True
    #: Whether what it makes of the same operands is made once.
    merges: ClassVar[bool] = True
    #: Whether each element of the result is one of its operands' elsewhere, or the number `fill`.
    moves_data: ClassVar[bool] = False
    #: Whether the elements stay as they are and in their order, in memory too (a reshape).
    keeps_data: ClassVar[bool] = False
    #: Which losses from logits apply it themselves to what a model ends in: softmax, sigmoid.
    link: ClassVar[Literal["", "softmax", "sigmoid"]] = ""

    @property
    def fill(self) -> float | None:
        """The number that an op which moves data puts between its operands' elements; None for none."""
        return None

    @property
    def linear_in(self) -> tuple[Container[int], ...]:
        """Groups of operands, by their places: it is linear in those of each group together.

        f(a x + b y) = a f(x) + b f(y), whatever the operands outside of the group hold. A sum has one group of two,
        a product two of one.
        """
        return ()

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        """Return the numbers between which all its results lie, whatever the operands hold."""
        return -inf, inf

    def extent(self, *operands: Extent) -> Extent:
        """Return between which numbers its results lie by those between which the operands lie, `bounds` apart."""
        filled = [] if self.fill is None else [Extent(self.fill, self.fill)]
        return one_of([*operands, *filled]) if self.moves_data else Extent()

    def pole(self, *operands: Extent) -> Pole:
        """Return what of it may be infinite or NaN where the operands lie in these extents and are finite."""
        return Pole.NONE

    @property
    def name(self) -> str:
        """Name in printed graphs and in tensor names."""
        return type(self).__name__

    def infer(self, *args: Any, **kwargs: Any) -> TensorType | tuple[TensorType, ...]:
        """Type of the output (a tuple of types for several outputs). Raises ShapeError when operands do not fit."""
        raise NotImplementedError(self.name)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """NumPy reference, the meaning of the op: used to fold constants and to test. Keeps the operands' precision."""
        raise NotImplementedError(self.name)

    def vjp(self, *args: Any, **kwargs: Any) -> tuple[Cotangent, ...]:
        """Return the cotangents of the inputs: called as `vjp(builder, *inputs, y=output, dy=cotangent of the output)`.

        One thunk per input that emits its cotangent, or None where nothing flows.
        Only the thunks of wanted inputs are called, so a pruned backward pass asks for no residual it does not need.
        For an op of several outputs `y` and `dy` are tuples, and a cotangent in `dy` may be None.
        """
        raise NotImplementedError(f"{self.name} has no derivative")

    def exact_vjp(self, *args: Any, **kwargs: Any) -> tuple[Cotangent, ...]:
        """Return the same where the cotangent may be infinite or NaN: what selecting cuts off is 0, not 0 times it.

        `vjp` may take any form that is right where all is finite, and so the quickest.
        """
        return self.vjp(*args, **kwargs)

    def bodies(self) -> tuple[Graph, ...]:
        """Return the graphs that it runs, of an op that controls others."""
        return ()

    def with_bodies(self, *bodies: Graph) -> Op:
        """Return the same op with other graphs in place of `bodies()`."""
        return self

    def reading(self, read: tuple[bool, ...]) -> tuple[Op, tuple[int, ...], tuple[int, ...]] | None:
        """Return the op without what it only does for results that nobody reads, if it can do without.

        Args:
            read: for each result whether it is read.

        Returns:
            The smaller op, and which of the operands and results it has.
        """
        return None

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """FLOPs and bytes of one execution; one FLOP an output element unless the op says otherwise."""
        return Cost(sum(t.size for t in outputs), sum(t.nbytes for t in (*inputs, *outputs)))

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows | tuple[Rows, ...]:
        """Return the rows that the elements of the output depend on, from the types of the operands and their rows.

        Here as if each element depended on all operands; raises RowsMixed where that is more than one row.
        """
        merged = together(*(rows.along(range(rows.of.ndim), keepdims=False) for rows in operands))
        made = self.infer(*inputs)
        alike = [Rows(merged.of.reshape((1,) * t.rank)) for t in (made if isinstance(made, tuple) else (made,))]
        return tuple(alike) if isinstance(made, tuple) else alike[0]

    def __str__(self) -> str:
        attributes = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.repr)
        return f"{self.name}({attributes})" if attributes else self.name
