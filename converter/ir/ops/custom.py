"""Custom derivatives, which the user wrote (`jax.custom_vjp`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from converter.ir.op import Cost, Cotangent, Op
from converter.ir.row_dependence import Rows
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Graph, Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class CustomGradient(Op):
    """Passes its last operands through and carries the user's own backward function.

    Operands: `arguments` primal arguments, `residuals` residuals of the traced fwd, then the outputs of fwd.
    Outputs: the outputs of fwd. `backward` is a Graph whose inputs are the residuals, then one cotangent an output,
    and whose outputs are one cotangent an argument, in order, named "0", "1", ...
    """

    arguments: int
    residuals: int
    backward: Graph = field(repr=False)

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        return types[self.arguments + self.residuals :]

    def evaluate(self, *arrays: Any) -> tuple[Any, ...]:
        return arrays[self.arguments + self.residuals :]

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> tuple[Rows, ...]:
        return operands[self.arguments + self.residuals :]

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost()

    def vjp(self, b: GraphBuilder, *inputs: Value, y: Any, dy: Any) -> tuple[Cotangent, ...]:
        """Inlines the backward function once, when the first cotangent is asked for."""
        ys, dys = (y, dy) if isinstance(y, tuple) else ((y,), (dy,))
        made: dict[str, Value] = {}

        def cotangent(i: int) -> Value:
            if not made:
                zeros = [
                    b.broadcast_to(b.constant(0.0), v.shape) if d is None else d for v, d in zip(ys, dys, strict=True)
                ]
                residuals = inputs[self.arguments : self.arguments + self.residuals]
                made.update(b.inline(self.backward, [*residuals, *zeros]))
            return made[str(i)]

        def thunk(i: int) -> Cotangent:
            return lambda: cotangent(i)

        names = self.backward.outputs
        return tuple(thunk(i) if i < self.arguments and str(i) in names else None for i in range(len(inputs)))
