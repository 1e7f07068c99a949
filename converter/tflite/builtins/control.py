"""Control flow: builtins that run other subgraphs again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from converter.ir import Graph, ops
from converter.ir.op import Cost
from converter.tflite.builtins.base import Builtin, Types


@dataclass(frozen=True)
class While(Builtin):
    """Runs `body` on the operands, then on what it gave, as long as `condition` holds of them.

    An operand that the body hands on as it is, and whose result nobody reads, is not copied: the steps read it in
    place. All others are copied once a step.

    Attributes:
        condition: a graph of the operands with a bool as its output.
        body: a graph of the operands with as many outputs, of the same types.
        steps: how often the body runs, as far as it is known.
        is_outlined: whether it is a piece of a graph, which runs once; results that are its own are those of the body.
    """

    code, table = "WHILE", "WhileOptions"
    kinds = "fibV"  # V: int4, an operand of pieces that unpack it
    condition: Graph = field(repr=False)
    body: Graph = field(repr=False)
    steps: int = 1
    is_outlined: bool = False

    def bodies(self) -> tuple[Graph, ...]:
        return self.condition, self.body

    def with_bodies(self, *bodies: Graph) -> While:
        condition, body = bodies
        return replace(self, condition=condition, body=body)

    def meaning(self, *types: Any) -> ops.While:
        return ops.While(self.condition, self.body)

    def result(self, *types: Any) -> Types:
        return self.meaning().infer(*types)

    def evaluate(self, *arrays: np.ndarray) -> Any:
        return self.meaning().evaluate(*arrays)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        step = self.meaning().cost(inputs, outputs)
        return Cost(self.steps * step.flops, self.steps * step.bytes)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"CondSubgraphIndex": self.condition, "BodySubgraphIndex": self.body}
