"""Control flow: builtins that run other subgraphs again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from converter.backend.builtins.arithmetic import Add
from converter.backend.builtins.base import Builtin, Types
from converter.backend.builtins.logic import Less
from converter.ir import BOOL, INT32, Graph, Node, Origin, TensorType, Value, ops
from converter.ir.op import Cost

#: What a loop counts its steps with.
COUNTER = TensorType((1,), INT32)


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


def one_step(body: Graph, origin: Origin) -> While:
    """Return the loop that runs a body once, by a counter that it puts before the body's inputs and outputs.

    The first operand is to be 0. Another loop of the same body shares its subgraph.
    """
    before, after, one = (Value(COUNTER, name) for name in ("operand_0", "result_0", "one"))
    body.inputs = [before, *body.inputs]
    body.constants[one] = np.ones(1, np.int32)
    body.nodes.append(Node(Add(), (before, one), (after,), origin))
    body.outputs = {after.name: after} | body.outputs
    return While(_is_first(body.inputs[1:]), body, is_outlined=True)


def _is_first(operands: Sequence[Value]) -> Graph:
    """Return the condition: the counter is 0."""
    counter, one = (Value(COUNTER, name) for name in ("operand_0", "one"))
    holds = Value(TensorType((1,), BOOL), "is_first")
    inputs = [counter, *(Value(v.type, f"operand_{i + 1}") for i, v in enumerate(operands))]
    return Graph(inputs, {one: np.ones(1, np.int32)}, {}, [Node(Less(), (counter, one), (holds,))], {"is_first": holds})
