"""The base class of all operators, of both levels (semantic and `tflite.*`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from converter.ir.rows import Rows, together
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Graph, Value

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
class Delegated:
    """How the CPU delegate (XNNPACK) runs an operator that it takes.

    Attributes:
        packed: bytes that it keeps from when the program is loaded: constants laid out for its kernels, tables of
            pointers.
        scratch: bytes of its workspace while the operator runs.
        in_place: whether the result may take over an operand's place in the workspace.
        clamps: whether a second operator, in place, applies its activation.
        copies: whether it only copies (variables): left out where the copy has one reader in the same partition.
        pads: whether it only puts zeros around rows and columns: left out before a window that can do it.
        windows: whether it is such a window.
    """

    packed: int = 0
    scratch: int = 0
    in_place: bool = False
    clamps: bool = False
    copies: bool = False
    pads: bool = False
    windows: bool = False


@dataclass(frozen=True)
class Op:
    """An operator: a frozen dataclass whose fields are its attributes. All that is known of it is in its class."""

    #: Whether a quick kernel computes each element from those at its place, or only moves them: cheap enough to be run
    #: twice.
    is_cheap: ClassVar[bool] = False

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
        """The cotangents of the inputs: called as `vjp(builder, *inputs, y=output, dy=cotangent of the output)`.

        One thunk per input that emits its cotangent, or None where nothing flows.
        Only the thunks of wanted inputs are called, so a pruned backward pass asks for no residual it does not need.
        For an op of several outputs `y` and `dy` are tuples, and a cotangent in `dy` may be None.
        """
        raise NotImplementedError(f"{self.name} has no derivative")

    def bodies(self) -> tuple[Graph, ...]:
        """The graphs that it runs, of an op that controls others."""
        return ()

    def with_bodies(self, *bodies: Graph) -> Op:
        """The same op with other graphs in place of `bodies()`."""
        return self

    def reading(self, read: tuple[bool, ...]) -> tuple[Op, tuple[int, ...], tuple[int, ...]] | None:
        """The op without what it only does for results that nobody reads, if it can do without.

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
        """The rows that the elements of the output depend on, from the types of the operands and their rows.

        Here as if each element depended on all operands; raises RowsMixed where that is more than one row.
        """
        merged = together(*(rows.along(range(rows.of.ndim), keepdims=False) for rows in operands))
        made = self.infer(*inputs)
        alike = [Rows(merged.of.reshape((1,) * t.rank)) for t in (made if isinstance(made, tuple) else (made,))]
        return tuple(alike) if isinstance(made, tuple) else alike[0]

    def scratch(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> tuple[int, ...]:
        """Bytes of each temporary tensor that the runtime's kernel keeps in the arena while it runs."""
        return ()

    def delegated(
        self,
        inputs: tuple[TensorType, ...],
        outputs: tuple[TensorType, ...],
        constant: tuple[bool, ...],
        lanes: int,
    ) -> Delegated | None:
        """How the CPU delegate runs it, None when it stays with the runtime's own kernels.

        Args:
            inputs: types of the operands.
            outputs: types of the results.
            constant: which operands are known when the program is loaded.
            lanes: columns that the kernel of a matrix product computes at once; weights are padded to them.
        """
        return None

    def in_place(self) -> tuple[int, ...]:
        """Operands whose buffer the output may take over in the runtime, in the order in which it tries them."""
        return ()

    def keeps_data(self) -> bool:
        """Whether an output that takes over its operand's buffer leaves the data as it is (a reshape)."""
        return False

    def copies(self) -> bool:
        """Whether the output is the operands' elements in another place: cheaper to make again than to keep."""
        return False

    def __str__(self) -> str:
        attributes = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.repr)
        return f"{self.name}({attributes})" if attributes else self.name
