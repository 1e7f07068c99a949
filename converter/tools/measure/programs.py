"""Benchmark programs: the cases as training programs, so that the harness can time them on a phone.

Each is a step of a net of one weight that besides runs the operators of a case, several times over. What these compute
is added to the loss, next to nothing of it, so nothing can be left out. A step without any says what is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.costs.costs import costs
from converter.backend.costs.step_cost import step_cost
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.lower import lower
from converter.backend.targets import Target
from converter.driver.program import Program
from converter.frontends.source import Source
from converter.ir import FLOAT32, Builder, Graph, Parameter, TensorType, Value, ops
from converter.tools.measure.cases import Case, graph_of

#: What of the operators' results is added to the loss.
_SHARE = 1e-6
#: Multiply-accumulates of a large constant product that a program is to take at least.
_LEAST = 50_000_000
#: How often a case runs at the most, which the kernels pack its constants for each time: they are not to fill a cache.
_MOST = 16
#: How often at the least one without: next to what only moves, making its operands counts.
_FEWEST = 8


@dataclass(frozen=True)
class Timed:
    """A program that runs a case.

    Attributes:
        name: of its file.
        case: None for the step alone.
        repeats: how often its operators run in a step.
        program: has the signature `train`.
    """

    name: str
    case: Case | None
    repeats: int
    program: Program


def timed_programs(chosen: Sequence[Case], target: Target) -> list[Timed]:
    """Return a program for each case, and first the one for none.

    Args:
        chosen: the cases.
        target: the runtime that will run them.
    """
    from converter.driver.build import plan
    from converter.driver.options import Options

    planned = plan(_net(), Options(batch=1, target=target, loss="mse"))
    alone = planned.assemble()
    least = target.macs("fully_connected.constant", _LEAST)
    found = [Timed("step", None, 0, alone)]
    for i, case in enumerate(chosen):
        inner = graph_of(case)
        repeats = ceil(least / step_cost(inner, target))
        repeats = min(repeats, _MOST) if inner.constants else max(repeats, _FEWEST)
        step = _with_operators(alone.signatures["train"], case, repeats, target)
        graphs = {**alone.signatures, "train": step}
        program = planned.assemble(signatures=graphs, costs=costs(graphs, target, "variables", 1))
        name = "".join(c if c.isalnum() else "-" for c in f"{i:02}-{case.form}")
        found.append(Timed(name, case, repeats, program))
    return found


def _net() -> Source:
    """Multiply one number by one weight."""
    b = Builder()
    x, scale = b.input("x", TensorType((1, 1))), Value(TensorType((1,)), "scale")
    b.graph.parameters[scale] = Parameter("scale", np.ones(1, np.float32))
    b.graph.outputs = {"output": b(ops.Mul(), x, scale)}
    return Source(b.graph, "forms")


def _with_operators(step: Graph, case: Case, repeats: int, target: Target) -> Graph:
    """Return the step that also runs the operators of a case, so many times."""
    c = _InStep(step, target)
    total = c(tfl.Mul(), c.one_number(case.emit(c)), _SHARE)
    for _ in range(repeats - 1):
        total = c(tfl.Add(), total, c(tfl.Mul(), c.one_number(case.emit(c)), _SHARE))
    loss = step.outputs["loss"]
    c.graph.outputs["loss"] = c(tfl.Add(), loss, c.reshape(total, loss.shape))
    return c.graph


class _InStep(Lowering):
    """Builds in a step; what is an input of a case is here a number that is only known when the step runs."""

    def __init__(self, step: Graph, target: Target) -> None:
        super().__init__(target, lower)
        self.graph = step.copy()
        (self._weight,) = (value for value, p in step.parameters.items() if p.kind == "weight")
        self._made: dict[tuple[str, TensorType], Value] = {}

    def input(self, name: str, type: TensorType) -> Value:
        if (name, type) not in self._made:
            numbers = np.random.default_rng(len(self._made)).uniform(0.5, 1, type.shape).astype(np.float32)
            value = self(tfl.Mul(), self.constant(numbers), self._weight)
            self._made[name, type] = (
                value if type.quantization is None else self(tfl.Quantize(type.quantization), value)
            )
        return self._made[name, type]

    def one_number(self, value: Value) -> Value:
        """Return the first number of a result, as float32 [1]."""
        first_of, stored_as = tfl.Slice((0,) * len(value.shape), (1,) * len(value.shape)), value.type.quantization
        first = self(first_of if stored_as is None else tfl.Int8((stored_as,), first_of, stored_as), value)
        if stored_as is not None:
            first = self(tfl.Dequantize((stored_as,)), first)
        return self.reshape(first if first.dtype == FLOAT32 else self(tfl.Cast(FLOAT32), first), (1,))
